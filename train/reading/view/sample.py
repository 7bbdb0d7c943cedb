"""Select a few trajectories of each kind from the first and the last step, the same ones every time."""

from __future__ import annotations

import hashlib
from itertools import chain, zip_longest
from typing import Final

import numpy as np

from rocstar.train.reading.view.listing import Listing

BUCKETS: Final = ("kept correct", "dropped_positive", "kept wrong", "dropped_negative", "no_signal", "failed")
"""The kinds of trajectory that a sample should contain, most informative first."""
OTHER: Final = "other"

Candidate = tuple[bytes, int, int, int]
"""The hash of a trajectory, by which candidates are ordered, its file, its row and its task."""
Step = dict[tuple[str, bool], list[Candidate]]
"""The candidates of a step by kind and whether a tool call failed."""


def sample_listing(listing: Listing, most: int) -> list[tuple[int, int]]:
    """Return the file number and row of at most `most` trajectories of the first and last step, of all kinds.

    Deterministic for equal files. Withheld trajectories are excluded.
    """
    if not len(listing.rows):
        return []
    first, last = int(listing.rows["step"].min()), int(listing.rows["step"].max())
    begin, end = _candidates(listing, first, most), _candidates(listing, last, most)
    if first == last:
        end = {}
    # About half from each step; all from one if the other has too few.
    early = choose(begin, most // 2 if end else most)
    late = choose(end, most - len(early))
    if len(early) + len(late) < most:
        early = choose(begin, most - len(late))
    return [(file, row) for _, file, row, _ in (*early, *late)]


def _candidates(listing: Listing, step: int, most: int) -> Step:
    found: Step = {}
    for at in np.flatnonzero((listing.rows["step"] == step) & ~listing.rows["hidden"]).tolist():
        row = listing.rows[at]
        kind = listing.buckets[row["bucket"]]
        if kind == "kept":
            kind = "kept correct" if row["is_correct"] else "kept wrong"
        name = f"{row['step']}/{row['task']}/{row['sibling']}/{row['row']}"
        key = hashlib.blake2b(name.encode(), digest_size=8).digest()
        candidate = (key, int(row["file"]), int(row["row"]), int(row["task"]))
        found.setdefault((kind if kind in BUCKETS else OTHER, bool(row["errors"])), []).append(candidate)
    return {kind: sorted(candidates)[:most] for kind, candidates in found.items()}


def choose(step: Step, num: int) -> list[Candidate]:
    """Return at most `num` candidates, one of each kind in turn; within a kind those with a tool error
    alternate with those without, and a task that was not chosen before comes first."""
    queues = []
    for kind in (*BUCKETS, OTHER):
        pairs = zip_longest(step.get((kind, True), []), step.get((kind, False), []))
        queues.append([one for one in chain.from_iterable(pairs) if one is not None])
    chosen: list[Candidate] = []
    tasks: set[int] = set()
    while len(chosen) < num and any(queues):
        for queue in filter(None, queues):
            if len(chosen) < num:
                one = next((one for one in queue if one[3] not in tasks), queue[0])
                queue.remove(one)
                chosen.append(one)
                tasks.add(one[3])
    return chosen
