"""Trajectories, groups and batches: the multi-turn loop and what runs it many times."""
