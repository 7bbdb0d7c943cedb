"""Stand-ins of the engine's seams for tests, the user's own included."""
