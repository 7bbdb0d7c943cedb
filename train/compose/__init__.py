"""Builds a run on rank 0: first its checks, then model, cold start, engine and agent, each from a `Setup`."""
