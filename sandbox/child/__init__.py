"""The code of zygotes and of the confined child processes."""
