"""The recipe: TOML over typed sections, its errors and its paths. Imports no torch."""
