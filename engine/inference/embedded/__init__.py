"""The embedded engine: continuous batching in this process."""
