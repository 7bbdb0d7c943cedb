"""The statistics of an analysis: pure functions of entropies and classes; a generator is passed in."""
