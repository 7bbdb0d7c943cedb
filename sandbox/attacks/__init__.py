"""Attack programs and their runner."""
