"""Before a run: its plan, and its missing requirements."""
