"""Sums and estimates of the analysis. Pure."""
