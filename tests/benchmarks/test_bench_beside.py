"""Decoding beside the learner: all ways do the same work, and none is always the first."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import bench_beside

from rocstar.train.recipe.model_config import ScratchConfig


async def test_every_round_does_all_ways_in_turn_and_the_first_round_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_beside, "SCRATCH", ScratchConfig())
    monkeypatch.setattr(bench_beside, "VOCABULARY", 300)
    order: list[tuple[str, int]] = []
    play = bench_beside.Pair.round

    async def noted(pair: bench_beside.Pair, number: int, micros: object) -> dict[str, float]:
        found = await play(pair, number, micros)
        order.append((pair.way, pair.engine.version))
        return found

    monkeypatch.setattr(bench_beside.Pair, "round", noted)
    _, rounds = await bench_beside.measure(Namespace(rows=4, tokens=3, learned=32, rounds=2))
    ways = bench_beside.WAYS
    assert [set(one) for one in rounds] == [set(ways)] * 2
    assert {way for way, _ in order[:: len(ways)]} == set(ways), "each is once the first"
    assert [version for _, version in order] == [k for k in (1, 2, 3) for _ in ways]
    for one in rounds:
        assert all(times["wall_s"] >= max(times["decode_s"], times["learn_s"]) for times in one.values())
