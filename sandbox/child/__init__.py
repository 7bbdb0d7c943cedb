"""What runs inside the confined processes, and what they have imported before."""
