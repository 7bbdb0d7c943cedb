"""`rocstar data`: what tasks are made of. `check` finds those that are questions of evaluation sets.

rows of TASKS ──words.py──> grams ──found in── GramIndex of the questions ──overlap.py──> level, evidence
"""
