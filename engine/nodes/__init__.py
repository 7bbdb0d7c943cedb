"""Groups rolled out on several nodes: one grants them, the others serve."""
