"""`rocstar data`: what tasks and conversations are made of.

build   rows of sources ──by themselves──> RowTable ──copies, overlap, difficulty, draw──> rows, provenance
check   rows of TASKS ──words.py──> grams ──found in── GramIndex of questions ──overlap.py──> level, evidence
show    the funnel of a build
"""
