"""The trajectory record: the facts of one attempt, and their format on the disk."""
