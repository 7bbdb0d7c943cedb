"""Before a run: what it will do, and all that is missing for it."""
