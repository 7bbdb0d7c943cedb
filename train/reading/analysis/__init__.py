"""Where a policy was uncertain: exact entropies of stored trajectories, by class of token.

    records ──selection──> trajectories ──forward──> entropies ────────┐
                             └──segments, turns──> classes of tokens ──┴─> sums by task ──> estimates ──> page

The analysis reads records and a checkpoint and writes a page, in one process. Memory holds a part of the
trajectories at a time; of the processed ones it keeps sums, counts of phrases and a few examples.
"""
