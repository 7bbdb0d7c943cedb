"""The environments of a recipe: each kind is an adapter of one file."""
