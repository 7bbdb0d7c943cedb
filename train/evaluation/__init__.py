"""Evaluations: attempts of the trained agent, their summary and their files."""
