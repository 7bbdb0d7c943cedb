"""The learner: packed batches, the update, all ranks behind one object, checkpoints."""
