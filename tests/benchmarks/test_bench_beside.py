"""Decoding beside the learner: both ways do the same work, and neither is always the first."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import bench_beside

from rocstar.train.config import ScratchConfig


async def test_every_round_does_both_ways_in_turn_and_the_first_round_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_beside, "SCRATCH", ScratchConfig())
    monkeypatch.setattr(bench_beside, "VOCABULARY", 300)
    order: list[tuple[str, int]] = []
    play = bench_beside.Pair.round

    async def noted(pair: bench_beside.Pair, number: int, micros: object) -> dict[str, float]:
        found = await play(pair, number, micros)
        name = bench_beside.BESIDE if pair._is_beside else bench_beside.IN_TURN
        order.append((name, pair.engine.version))
        return found

    monkeypatch.setattr(bench_beside.Pair, "round", noted)
    options = Namespace(rows=4, tokens=3, learned=32, rounds=2)
    _, rounds = await bench_beside.measure(options)
    assert [sorted(one) for one in rounds] == [sorted((bench_beside.BESIDE, bench_beside.IN_TURN))] * 2
    firsts = [name for name, _ in order[::2]]
    assert firsts[1] != firsts[2] and [version for _, version in order] == [1, 1, 2, 2, 3, 3]
    for one in rounds:
        assert all(times["wall_s"] >= max(times["decode_s"], times["learn_s"]) for times in one.values())
