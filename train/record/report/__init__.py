"""A run as one page."""
