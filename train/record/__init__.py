"""The output of a run: metrics, console, run directory. It observes the run and decides nothing."""
