"""Simulate the learner of a recipe on an absent GPU, and check that its memory fits."""
