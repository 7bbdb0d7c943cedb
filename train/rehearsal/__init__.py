"""The learner of a recipe on a GPU that is not there: what it holds, and whether that fits."""
