"""Groups of sibling trajectories: where those of a step come from, and what the learner sees of them."""
