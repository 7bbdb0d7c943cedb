"""Groups of sibling trajectories: the sources of a step's groups, and their selection for the learner."""
