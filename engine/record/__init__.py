"""The trajectory record: what is known of one attempt, and how it lies on the disk."""
