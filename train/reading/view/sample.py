"""Which trajectories stand for a run: those that the report would choose, out of the list."""

from __future__ import annotations

import hashlib

import numpy as np

from rocstar.train.reading.view.listing import Listing
from rocstar.train.record.report.sample import BUCKETS, OTHER, RecordPlace, Step, choose_of_both, kind_of_fate


def sample(listing: Listing, most: int) -> list[tuple[int, int]]:
    """At most so many of the first and of the last step, of all kinds: number of the file and row in it.

    The same files give the same ones. Hidden ones are left out.
    """
    if not len(listing.rows):
        return []
    first, last = int(listing.rows["step"].min()), int(listing.rows["step"].max())
    chosen = choose_of_both(
        _places(listing, first, most), _places(listing, last, most) if last != first else {}, most
    )
    return [(place.file, place.line) for place in chosen]


def _places(listing: Listing, step: int, most: int) -> Step:
    """The places of a step that may be chosen, by kind and whether a tool call failed."""
    found: Step = {}
    for at in np.flatnonzero((listing.rows["step"] == step) & ~listing.rows["hidden"]).tolist():
        row = listing.rows[at]
        kind = kind_of_fate(listing.buckets[row["bucket"]], bool(row["is_correct"]))
        name = f"{row['step']}/{row['task']}/{row['sibling']}/{row['row']}"
        key = hashlib.blake2b(name.encode(), digest_size=8).digest()
        place = RecordPlace(key, int(row["file"]), int(row["row"]), str(row["task"]))
        found.setdefault((kind if kind in BUCKETS else OTHER, bool(row["errors"])), []).append(place)
    return {kind: sorted(places)[:most] for kind, places in found.items()}
