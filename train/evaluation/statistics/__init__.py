"""The statistics of an evaluation: pure functions of attempts; no I/O, no clock, a generator is passed in."""
