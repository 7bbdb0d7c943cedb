"""Attack programs, and the runner that says whether each came to what it must."""
