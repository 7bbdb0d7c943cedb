"""What reads the records and rows of runs, for people: the page, the alarms, the entropies."""
