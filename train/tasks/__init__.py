"""Tasks, demonstrations and rewards: what is asked, and what an answer earns. Imports no torch."""
