"""Noise is a function of names (contract 4)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.seeds import stream_of, uniforms
from rocstar.engine.types import TrajectoryKey


def key(**changes: object) -> TrajectoryKey:
    return TrajectoryKey(**({"seed": 1, "step": 2, "task_id": "a", "sibling": 3} | changes))  # type: ignore[arg-type]


def draw(streams: list[int], positions: list[int]) -> list[float]:
    return uniforms(np.array(streams, np.uint64), np.array(positions, np.uint64)).tolist()


def splitmix(stream: int, position: int) -> float:
    """The same in plain integers."""

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    return (mix((mix(stream) + 0x9E3779B97F4A7C15 * (position + 1)) % 2**64) >> 11) * 2.0**-53


def test_the_function_never_changes() -> None:
    """A recorded run replays only if these numbers stay."""
    assert stream_of(key()) == 468524552157451102
    pairs = [(0, 0), (1, 1), (2**63, 2**40)]
    assert draw([0, 1, 2**63], [0, 1, 2**40]) == [splitmix(*pair) for pair in pairs]
    assert splitmix(0, 0) == 0.8833108082136426  # SplitMix64's first output for seed 0: 0xE220A8397B1DCDAF


def test_every_part_of_the_key_matters() -> None:
    keys = [
        key(),
        key(seed=2),
        key(step=3),
        key(sibling=4),
        key(branch="3.1"),
        *(key(task_id=one) for one in ("b", "a|1", "é")),
    ]
    streams = [*(stream_of(k) for k in keys), stream_of(key(), purpose="tools")]
    assert len(set(streams)) == len(streams)
    assert all(0 <= stream < 1 << 63 for stream in streams)


numbers = st.integers(0, 10**6)
keys = st.builds(
    TrajectoryKey,
    seed=numbers,
    step=numbers,
    task_id=st.text("|/~.0a", max_size=4),
    sibling=numbers,
    branch=st.sampled_from(["", "3.1", "3.1/5.2"]),
)


@given(keys, keys)
def test_separators_in_a_task_id_do_not_confuse_keys(a: TrajectoryKey, b: TrajectoryKey) -> None:
    assert (stream_of(a) == stream_of(b)) == (a == b)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32)), min_size=1, max_size=20), st.randoms())
def test_order_and_company_do_not_matter(pairs: list[tuple[int, int]], random: object) -> None:
    alone = {pair: draw([pair[0]], [pair[1]])[0] for pair in pairs}
    random.shuffle(pairs)  # type: ignore[attr-defined]
    together = draw([s for s, _ in pairs], [p for _, p in pairs])
    assert together == [alone[pair] for pair in pairs]
    assert all(0.0 <= x < 1.0 for x in together)


@pytest.mark.parametrize("along", ["positions", "streams"])
def test_smoke_of_uniformity(along: str) -> None:
    """Mean, variance, lag-1 correlation and 16 bins of 20,000 numbers, each within five standard errors."""
    n = 20_000
    steps = list(range(n))
    x = np.array(draw([7] * n, steps) if along == "positions" else draw(steps, [7] * n))
    assert abs(x.mean() - 0.5) < 5 * (1 / 12 / n) ** 0.5
    assert abs(x.var() - 1 / 12) < 5 * (1 / 180 / n) ** 0.5
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 5 / n**0.5
    counts = np.histogram(x, 16, (0, 1))[0]
    assert ((counts - n / 16) ** 2 / (n / 16)).sum() < 15 + 5 * 30**0.5
