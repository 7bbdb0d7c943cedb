"""Where a policy was uncertain: exact entropies of stored trajectories, by what each token is for.

    records ──chosen──> trajectories ──learner's forward──> entropies ─┐
                             └──segments, turns──> classes of tokens ──┴─> sums by task ──> estimates ──> page

A run's records and a checkpoint are read, a page is written, nothing else. One process, nobody waits; a part
of the trajectories is in memory at a time, and of what is done only sums, counts of wordings and a few that
are shown.
"""
