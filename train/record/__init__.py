"""What a run says of itself: metrics, console, run directory. It listens and decides nothing."""
