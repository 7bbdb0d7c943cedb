"""A rehearsal against the same learner on real tensors; the rest of the grid is the benchmark's."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import rehearsal_against_measured as benchmark


def test_rehearsed_bytes_are_measured_ones() -> None:
    recipe = benchmark.recipe_of("small", dtype="float32", checkpointing=False, tokens=512)
    for act, found in benchmark.compare(recipe).items():
        assert abs(found["ratio"] - 1) <= 0.1, (act, found)
