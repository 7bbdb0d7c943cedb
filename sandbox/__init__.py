"""Isolated execution of Python programs. Knows nothing of the engine, the learner or the kernels."""
