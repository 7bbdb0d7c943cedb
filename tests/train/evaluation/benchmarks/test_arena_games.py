"""Labels, points and the score of Arena-Hard, and the coverage of the clustered interval."""

import math
from itertools import product

import numpy as np
import pytest

from rocstar.train.evaluation.benchmarks.arena_hard import (
    arena_score,
    clustered_interval,
    parse_label,
    score_games,
)

LABELS = ("A>>B", "A>B", "A=B", "B>A", "B>>A")


@pytest.mark.parametrize(
    ("judgement", "label"),
    [
        ("My final verdict is [[A>B]].", "A>B"),
        ("[[A>B]] no, on reflection [[b>>a]]", "B>>A"),
        ("so [A=B]", "A=B"),
        ("[A>B] and then [[B>A]]", "B>A"),
        ("[[A<<B]]", "B>>A"),
        ("[[B=A]]", "A=B"),
        ("[[A>>>B]]", None),
        ("A>B", None),
        ("[[]]", None),
        ("", None),
    ],
)
def test_the_last_label_counts(judgement: str, label: str | None) -> None:
    assert parse_label(judgement) == label


@pytest.mark.parametrize(
    ("first", "second", "points"),
    [
        ("B>>A", "A>>B", (1, 1, 1, 1, 1, 1)),
        ("A>>B", "B>>A", (0, 0, 0, 0, 0, 0)),
        ("A=B", "A=B", (0.5, 0.5)),
        ("A>B", "A>B", (1, 0)),
        ("A>>B", "A>B", (1, 0, 0, 0)),
        ("B>A", "A>>B", (1, 1, 1, 1)),
    ],
)
def test_the_policy_is_b_first_and_a_then(first: str, second: str, points: tuple[float, ...]) -> None:
    assert score_games(first, second) == points


def test_changing_sides_mirrors_the_points() -> None:
    mirror = dict(zip(LABELS, reversed(LABELS), strict=True))
    for first, second in product(LABELS, LABELS):
        mine = score_games(first, second)
        other = score_games(mirror[first], mirror[second])
        assert sorted(mine) == sorted(1 - point for point in other)


def test_the_score_is_that_of_bootstraps_over_games() -> None:
    rng = np.random.default_rng(3)
    points = [score_games(*rng.choice(LABELS, 2)) for _ in range(500)]
    flat = [point for prompt in points for point in prompt]
    found = arena_score(points)
    assert found["arena_mean"] == pytest.approx(100 * math.fsum(flat) / len(flat))
    assert found["arena_score"] == pytest.approx(found["arena_mean"], abs=0.5)
    spread = float(np.std(flat)) / math.sqrt(len(flat))
    assert found["arena_score_p95"] - found["arena_score_p05"] == pytest.approx(329 * spread, rel=0.25)
    assert found["arena_mean_low"] < found["arena_mean"] < found["arena_mean_high"]
    assert arena_score(points) == found
    assert arena_score(points, seed=1)["arena_score"] != found["arena_score"]


def test_games_that_agree_in_a_prompt_tell_no_more_than_one() -> None:
    alone = [(1.0,), (0.0,)] * 50
    repeated = [prompt * 6 for prompt in alone]
    assert clustered_interval(repeated) == pytest.approx(clustered_interval(alone), abs=1e-9)
    score = arena_score(repeated)
    bootstrapped = score["arena_score_p95"] - score["arena_score_p05"]
    assert bootstrapped < 0.6 * (score["arena_mean_high"] - score["arena_mean_low"])


def test_the_interval_covers_at_its_level() -> None:
    """Prompts are drawn with a skill of their own, so that their games are alike."""
    rng = np.random.default_rng(0)
    means, weights, rounds = 0.0, 0.0, 300
    drawn = []
    for _ in range(rounds):
        skill = rng.beta(1, 1.5, size=120)
        points = []
        for p in skill:
            games = rng.random(2) < p
            counts = rng.choice([1, 3], 2)
            points.append(
                [float(game) for game, count in zip(games, counts, strict=True) for _ in range(count)]
            )
        drawn.append(points)
        means += sum(map(sum, points))
        weights += sum(map(len, points))
    truth = means / weights
    hits = sum(low <= truth <= high for low, high in map(clustered_interval, drawn))
    assert 0.92 <= hits / rounds <= 0.98


@pytest.mark.parametrize("points", [[(1.0,)] * 20, [(0.0, 0.0)] * 20])
def test_the_interval_is_not_empty_when_all_is_won_or_lost(points: list[tuple[float, ...]]) -> None:
    low, high = clustered_interval(points)
    assert 0.1 < high - low < 0.3


def test_one_prompt_tells_nothing() -> None:
    assert clustered_interval([(1.0, 0.0)]) == (0.0, 1.0)
