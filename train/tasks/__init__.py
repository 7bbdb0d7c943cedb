"""Tasks, demonstrations and rewards. Imports no torch."""
