"""A rehearsal against the same learner on real tensors; the rest of the grid is the benchmark's."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import rehearsal_against_measured as benchmark


def test_rehearsed_bytes_are_measured_ones() -> None:
    recipe = benchmark.recipe_of("small", dtype="float32", checkpointing=False, tokens=512)
    for act, found in benchmark.compare(recipe).items():
        assert abs(found["ratio"] - 1) <= 0.1, (act, found)


@pytest.mark.parametrize("size", ["wide", "small"])
def test_an_engine_holds_what_is_rehearsed(size: str) -> None:
    """Its weights, KV and workspace, with 16 rows of 250 tokens."""
    recipe = benchmark.recipe_of(size, dtype="bfloat16", checkpointing=False, tokens=512)
    few = recipe.engine.model_copy(update={"max_running": 16})
    stages = [stage.model_copy(update={"max_response_tokens": 200}) for stage in recipe.stages]
    found = benchmark.compare_engine(recipe.model_copy(update={"engine": few, "stages": stages}))
    assert abs(found["ratio"] - 1) <= 0.1, found
