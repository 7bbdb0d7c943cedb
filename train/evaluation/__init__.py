"""Evaluations: attempts of the agent that trains, their summary, and their files."""
