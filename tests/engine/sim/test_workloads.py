"""The generator gives what the paper reports, and the same for the same seed."""

import pytest

from rocstar.engine.sim.workload import SHAPES, generate, with_branches


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_paper_numbers() -> None:
    """2.75 calls, 0.3 s a call, 4K to 8K tokens on average, a tail to the limit of 12K, 32 siblings."""
    work = generate("paper", tasks=128, seed=1).trajectories
    assert len(work) == 128 * 32
    lengths = [t.response_tokens for t in work]
    assert 4000 < mean([float(n) for n in lengths]) < 8000
    assert max(lengths) == 12288 and 0.05 < mean([float(n == 12288) for n in lengths]) < 0.2
    assert mean([float(len(t.turns) - 1) for t in work]) == pytest.approx(2.75, rel=0.05)
    calls = [turn.tool_s for t in work for turn in t.turns[:-1]]
    assert mean(calls) == pytest.approx(0.3, rel=0.1)


def test_the_three_differ_as_named() -> None:
    made = {name: generate(name, tasks=32, seed=2).trajectories for name in SHAPES}
    spread = {
        name: max(t.response_tokens for t in work) / mean([float(t.response_tokens) for t in work])
        for name, work in made.items()
    }
    assert spread["short-tail"] < spread["paper"]
    waits = {name: mean([sum(u.tool_s for u in t.turns) for t in work]) for name, work in made.items()}
    assert waits["tool-heavy"] > 10 * waits["paper"]


@pytest.mark.parametrize("name", list(SHAPES))
def test_seeds(name: str) -> None:
    assert generate(name, tasks=2, seed=1) == generate(name, tasks=2, seed=1)
    assert generate(name, tasks=2, seed=1) != generate(name, tasks=2, seed=2)


def test_branches_begin_with_their_parents_tokens() -> None:
    plain = generate("tool-heavy", tasks=4, siblings=8, seed=1)
    forked = with_branches(plain, rate=0.25, width=3, seed=1)
    assert with_branches(plain, rate=0.0) == plain and forked.trajectories[:32] == plain.trajectories
    parents = {t.traj: t for t in plain.trajectories}
    branches, answered = forked.trajectories[32:], sum(len(t.turns) - 1 for t in plain.trajectories)
    assert len(branches) % 2 == 0 and len(branches) / 2 / answered == pytest.approx(0.25, abs=0.06)
    for branch in branches:
        assert branch.fork is not None
        parent = parents[branch.fork[0]]
        before = sum(turn.new_tokens + turn.tool_tokens for turn in parent.turns[: branch.fork[1]])
        assert branch.prompt_tokens == parent.prompt_tokens + before
        assert branch.max_tokens == parent.max_tokens - before
