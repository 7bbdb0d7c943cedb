"""Owners get programs by their weights: turn by turn, and through workers in virtual time."""

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocstar.sandbox.fabric.owner_queue import ALIKE, OWED, OwnerFairQueue

from .virtual import Took, VirtualFabric

ENTRY = 4


class Books:
    """What each owner was given, and how far any two were apart while both waited."""

    def __init__(self, weights: list[int]) -> None:
        self.weights = {str(number): weight for number, weight in enumerate(weights)}
        self.waiting: Counter[str] = Counter()
        self.out: Counter[str] = Counter()
        self.given: Counter[str] = Counter()
        self.spans: dict[tuple[str, ...], tuple[float, float]] = {}

    def has_its_places(self, owner: str, places: int) -> bool:
        total = sum(weight for name, weight in self.weights.items() if self.waiting[name] + self.out[name])
        return self.out[owner] >= places * self.weights[owner] // total

    def compare(self, *, anew: bool) -> None:
        """`anew`: somebody came before its turn."""
        for pair in itertools.combinations(self.weights, 2):
            if anew or not (self.waiting[pair[0]] and self.waiting[pair[1]]):
                self.spans.pop(pair, None)
                continue
            apart = [self.given[owner] / self.weights[owner] for owner in pair]
            gap = apart[0] - apart[1]
            least, most = self.spans.get(pair, (gap, gap))
            self.spans[pair] = min(least, gap), max(most, gap)
            bound = sum((OWED + ENTRY) / self.weights[owner] for owner in pair)
            assert max(most, gap) - min(least, gap) <= bound + 1e-9, pair


@given(
    weights=st.lists(st.integers(1, 7), min_size=2, max_size=4),
    places=st.integers(0, 8),
    window=st.integers(1, 24),
    seed=st.integers(0, 1 << 32),
)
@settings(max_examples=60, deadline=None)
def test_turns_are_by_weight_whatever_comes_and_in_whatever_order_calls_end(
    weights: list[int], places: int, window: int, seed: int
) -> None:
    turns, books, rng = OwnerFairQueue(), Books(weights), random.Random(seed)
    for arrival in range(150):
        owner = rng.choice(list(books.weights))
        if rng.random() < 0.5:
            for _ in range(rng.choice([1, 2, 30])):
                turns.opened(owner, books.weights[owner])
                books.waiting[owner] += 1
        elif books.out[owner]:
            turns.answered(owner, rng.uniform(1.0, ALIKE))  # alike: each costs 1
            turns.release(owner)
            turns.closed(owner)
            books.out[owner] -= 1
        books.compare(anew=False)
        while turns.out < window and +books.waiting:
            oldest = {name: arrival for name in +books.waiting}
            owner = turns.next(oldest, places)
            early = not books.has_its_places(owner, places)
            assert early or all(books.has_its_places(name, places) for name in oldest)
            calls = rng.randint(1, min(ENTRY, books.waiting[owner], window - turns.out))
            turns.charge(owner, calls)
            books.waiting[owner] -= calls
            books.out[owner] += calls
            books.given[owner] += calls
            books.compare(anew=early)


def quiet(rng: random.Random, owner: str) -> float:
    return 0.021 + rng.expovariate(1 / 0.002)


def busy(rng: random.Random, owner: str) -> float:
    return 0.02 + rng.expovariate(1 / 0.06)


@pytest.mark.parametrize("took", [quiet, busy])
@pytest.mark.parametrize("way_s", [0.0005, 0.02])
@pytest.mark.parametrize("weights", [{"heavy": 2, "light": 1}, {"heavy": 5, "light": 1}])
def test_the_heavier_has_programs_by_its_weight(took: Took, way_s: float, weights: dict[str, int]) -> None:
    """The same on a machine where programs take longer, and each time another; and wherever calls wait: in
    Redis, on their way, or in pools, which have no fifth of three places for the lighter."""
    fabric = VirtualFabric(weights, took, way_s=way_s)
    fabric.run(1.0)
    fabric.run(9.0 if took is busy else 4.0)
    programs = fabric.programs(since_s=1.0)
    assert programs.total() > 300
    ratio = programs["heavy"] / programs["light"] / weights["heavy"]
    assert 0.95 < ratio < 1.05, programs


def test_of_unlike_programs_the_time_is_shared() -> None:
    fabric = VirtualFabric({"slow": 1, "quick": 1}, lambda rng, owner: TOOK_S[owner], way_s=0.002)
    fabric.run(10.0)
    programs = fabric.programs(since_s=2.0)
    slow_s, quick_s = (programs[owner] * TOOK_S[owner] for owner in ("slow", "quick"))
    assert quick_s > slow_s / ALIKE**2 / 1.2, programs  # of quick ones a part is always on its way


TOOK_S = {"slow": 0.5, "quick": 0.02}


def test_who_was_passed_over_is_owed_few_calls() -> None:
    """Places of its own are no debt that others collect for ever."""
    turns = OwnerFairQueue()
    for owner in ("early", "other"):
        for _ in range(1000):
            turns.opened(owner, 1)
    for _ in range(500):
        turns.charge("early", 1)
        turns.release("early")
    following = []
    for _ in range(100):
        following.append(turns.next({"early": 1, "other": 2}, places=0))
        turns.charge(following[-1], 1)
    assert 50 <= Counter(following)["other"] <= 50 + OWED


def test_an_owner_that_comes_has_saved_nothing_up() -> None:
    turns = OwnerFairQueue()
    for _ in range(200):
        turns.opened("first", 1)
    for _ in range(100):
        turns.charge("first", 1)
    for _ in range(200):
        turns.opened("second", 1)
    following = []
    for _ in range(40):
        following.append(turns.next({"first": 1, "second": 2}, places=0))
        turns.charge(following[-1], 1)
    assert abs(Counter(following)["first"] - 20) <= 1
