"""Resample-on-Correct: penalties, quotas, and the law of each draw."""

import itertools
import math
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.algorithm.roc import (
    Decision,
    DropReason,
    Penalty,
    RocMode,
    can_end,
    choose_siblings,
    quotas,
    roc_penalty,
)

DRAWING_MODES = [RocMode.paper, RocMode.sort, RocMode.uniform]
CLEAN = Penalty(error=0.0, format=0.0)


def penalty_for(calls: int, errors: int, answers: int, turns: int) -> Penalty:
    return roc_penalty(num_tool_calls=calls, num_tool_errors=errors, num_answers=answers, num_turns=turns)


def keys_of(num_siblings: int, rng: random.Random) -> list[float]:
    return [rng.expovariate(1.0) for _ in range(num_siblings)]


def decide(
    rewards: list[int], penalties: list[Penalty] | None = None, *, keep: int, mode: RocMode, seed: int = 0
) -> list[Decision]:
    penalties = penalties if penalties is not None else [CLEAN] * len(rewards)
    correct = [reward == 1 for reward in rewards]
    keys = keys_of(len(rewards), random.Random(seed))
    return choose_siblings(rewards, correct, penalties, keys, keep=keep, mode=mode)


def kept_indices(decisions: list[Decision]) -> list[int]:
    return [i for i, decision in enumerate(decisions) if decision.kept]


# --- Penalty (Eq. 4 and 5) ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "errors", "answers", "turns", "error", "format_"),
    [
        (0, 0, 1, 1, 0.5, 0.0),  # no tool call costs one half; one answer in one turn is clean
        (1, 0, 1, 2, 0.0, 0.0),
        (1, 1, 1, 2, 1.0, 0.0),
        (4, 1, 1, 5, 0.25, 0.0),
        (3, 2, 0, 4, 2 / 3, 1.0),  # no answer
        (1, 0, 2, 2, 0.0, 0.5),
        (1, 0, 2, 3, 0.0, 1 / 3),
        (1, 0, 3, 2, 0.0, 1.0),
        (1, 0, 9, 2, 0.0, 1.0),  # capped at 1
        (0, 0, 0, 1, 0.5, 1.0),
    ],
)
def test_penalty_follows_equations_4_and_5(
    calls: int, errors: int, answers: int, turns: int, error: float, format_: float
) -> None:
    penalty = penalty_for(calls, errors, answers, turns)
    assert penalty == Penalty(error=error, format=format_)
    assert penalty.total == pytest.approx(error + format_)


@given(st.data())
def test_penalty_total_lies_between_0_and_2(data: st.DataObject) -> None:
    calls = data.draw(st.integers(0, 20))
    errors = data.draw(st.integers(0, calls))
    penalty = penalty_for(calls, errors, data.draw(st.integers(0, 40)), data.draw(st.integers(1, 20)))
    assert 0.0 <= penalty.total <= 2.0


# --- Quotas ------------------------------------------------------------------------------------------


def released_quotas(positives: int, negatives: int, keep: int, minimum: int) -> tuple[int, int]:
    """The rule of the released code, where it keeps exactly `keep` (it keeps everything if both are few)."""
    total = positives + negatives
    z, p = round(negatives * keep / total), round(positives * keep / total)
    assert not (z < minimum and p < minimum)
    if z <= min(minimum, negatives):
        z = min(minimum, negatives)
        p = keep - z
    if p <= min(minimum, positives):
        p = min(minimum, positives)
        z = keep - p
    return p, z


@pytest.mark.parametrize(
    ("positives", "kept_positives", "kept_negatives"),
    [
        (1, 1, 15),
        (2, 2, 14),
        (3, 2, 14),
        (5, 2, 14),
        (6, 3, 13),
        (16, 8, 8),
        (26, 13, 3),
        (27, 14, 2),
        (30, 14, 2),
        (31, 15, 1),
    ],
)
def test_quotas_of_the_paper_setting(positives: int, kept_positives: int, kept_negatives: int) -> None:
    rewards = [1] * positives + [0] * (32 - positives)
    for mode in DRAWING_MODES:
        kept = kept_indices(decide(rewards, keep=16, mode=mode))
        assert sum(rewards[i] for i in kept) == kept_positives
        assert len(kept) == kept_positives + kept_negatives


@pytest.mark.parametrize("positives", range(1, 32))
def test_quotas_agree_with_the_released_rule(positives: int) -> None:
    ours = quotas(positives, 32 - positives, keep=16, min_positive=2, min_negative=2)
    assert ours == released_quotas(positives, 32 - positives, 16, 2)


@pytest.mark.parametrize(
    ("keep", "expected"),
    [(2, (1, 1)), (3, (2, 1)), (4, (2, 2))],  # both minimums of 2 fit only from 4 on
)
def test_a_keep_too_small_for_both_minimums_still_has_both_signs(keep: int, expected: tuple[int, int]) -> None:
    assert quotas(5, 5, keep=keep, min_positive=2, min_negative=2) == expected
    assert quotas(2, 8, keep=keep, min_positive=2, min_negative=2) == expected


def test_minimum_counts_of_zero_still_keep_one_of_each() -> None:
    assert quotas(1, 31, keep=4, min_positive=0, min_negative=0) == (1, 3)
    assert quotas(31, 1, keep=4, min_positive=0, min_negative=0) == (3, 1)


def test_minimum_counts_of_each_side_are_its_own() -> None:
    assert quotas(10, 90, keep=10, min_positive=4, min_negative=1) == (4, 6)
    assert quotas(90, 10, keep=10, min_positive=1, min_negative=4) == (6, 4)


# --- The invariant of choose_siblings --------------------------------------------------------------


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[int], list[Penalty]]:
    rewards = draw(st.lists(st.integers(0, 1), min_size=0, max_size=40))
    units = st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 1.0])
    penalties = [Penalty(error=draw(units), format=draw(units)) for _ in rewards]
    return rewards, penalties


@given(
    group=groups(),
    keep=st.integers(2, 20),
    mode=st.sampled_from(RocMode),
    minimums=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    seed=st.integers(0, 2**32),
)
def test_exactly_keep_are_kept_with_both_signs(
    group: tuple[list[int], list[Penalty]], keep: int, mode: RocMode, minimums: tuple[int, int], seed: int
) -> None:
    rewards, penalties = group
    decisions = choose_siblings(
        rewards,
        [reward == 1 for reward in rewards],
        penalties,
        keys_of(len(rewards), random.Random(seed)),
        keep=keep,
        mode=mode,
        min_positive=minimums[0],
        min_negative=minimums[1],
    )
    assert len(decisions) == len(rewards)
    kept = kept_indices(decisions)
    if len(set(rewards)) < 2:
        assert all(decision.reason is DropReason.no_signal for decision in decisions)
        assert kept == []
        return
    assert len(kept) == (len(rewards) if mode is RocMode.none else min(keep, len(rewards)))
    assert {rewards[i] for i in kept} == {0, 1}
    for reward, decision in zip(rewards, decisions, strict=True):
        dropped = DropReason.dropped_positive if reward else DropReason.dropped_negative
        assert decision.reason is (DropReason.kept if decision.kept else dropped)


@given(group=groups(), keep=st.integers(2, 20), seed=st.integers(0, 2**32), data=st.data())
def test_permuting_a_group_changes_neither_the_quotas_nor_what_sort_keeps(
    group: tuple[list[int], list[Penalty]], keep: int, seed: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(group[0]))))

    def kept_of(indices: list[int], mode: RocMode) -> tuple[int, list[float]]:
        rewards, penalties = [group[0][i] for i in indices], [group[1][i] for i in indices]
        kept = kept_indices(decide(rewards, penalties, keep=keep, mode=mode, seed=seed))
        totals = sorted(penalties[i].total for i in kept if rewards[i])
        return len(kept) - len(totals), totals

    for mode in RocMode:
        before, after = kept_of(list(range(len(order))), mode), kept_of(order, mode)
        assert before[0] == after[0]
        assert len(before[1]) == len(after[1])
        if mode is RocMode.sort:
            assert before[1] == after[1]


# --- The law of each mode ------------------------------------------------------------------------------

REWARDS = [1, 0, 1, 1, 0, 0, 1, 0]
CORRECT = [reward == 1 for reward in REWARDS]
POSITIVES = [0, 2, 3, 6]
NEGATIVES = [1, 4, 5, 7]
PENALTIES = [Penalty(error=0.0, format=0.0)] * 8
PENALTIES[2] = Penalty(error=0.5, format=0.0)
PENALTIES[3] = Penalty(error=1.0, format=0.5)
PENALTIES[6] = Penalty(error=0.25, format=0.0)
PENALTIES[4] = Penalty(error=1.0, format=1.0)  # the penalty of a negative must not matter


def sequential_set_probabilities(weights: dict[int, float], num_draws: int) -> dict[frozenset[int], float]:
    """Enumerate every order of `num_draws` successive weighted picks and add up per resulting set."""
    probabilities: dict[frozenset[int], float] = {}
    for order in itertools.permutations(weights, num_draws):
        left, probability = sum(weights.values()), 1.0
        for item in order:
            probability *= weights[item] / left
            left -= weights[item]
        probabilities[frozenset(order)] = probabilities.get(frozenset(order), 0.0) + probability
    assert sum(probabilities.values()) == pytest.approx(1.0)
    return probabilities


def chi_square(counts: Counter[frozenset[int]], expected: dict[frozenset[int], float]) -> float:
    total = sum(counts.values())
    assert set(counts) <= set(expected)
    return sum((counts[key] - total * p) ** 2 / (total * p) for key, p in expected.items())


def kept_sets(mode: RocMode, among: list[int], num_groups: int = 12_000) -> Counter[frozenset[int]]:
    rng = random.Random(20250828)
    counts: Counter[frozenset[int]] = Counter()
    for _ in range(num_groups):
        kept = kept_indices(choose_siblings(REWARDS, CORRECT, PENALTIES, keys_of(8, rng), keep=4, mode=mode))
        counts[frozenset(kept) & frozenset(among)] += 1
    return counts


CHI_SQUARE_5_DOF_AT_0_999 = 20.52  # six possible sets of two out of four


def test_paper_mode_draws_positives_as_successive_weighted_picks() -> None:
    expected = sequential_set_probabilities({i: 1 / (0.1 + PENALTIES[i].total) for i in POSITIVES}, 2)
    assert chi_square(kept_sets(RocMode.paper, POSITIVES), expected) < CHI_SQUARE_5_DOF_AT_0_999


def test_uniform_mode_draws_positives_uniformly() -> None:
    expected = sequential_set_probabilities(dict.fromkeys(POSITIVES, 1.0), 2)
    assert chi_square(kept_sets(RocMode.uniform, POSITIVES), expected) < CHI_SQUARE_5_DOF_AT_0_999


@pytest.mark.parametrize("mode", DRAWING_MODES)
def test_negatives_are_drawn_uniformly(mode: RocMode) -> None:
    expected = sequential_set_probabilities(dict.fromkeys(NEGATIVES, 1.0), 2)
    assert chi_square(kept_sets(mode, NEGATIVES), expected) < CHI_SQUARE_5_DOF_AT_0_999


@pytest.mark.parametrize("num_draws", [1, 2, 3])
def test_the_first_positives_to_arrive_are_the_sequential_draw(num_draws: int) -> None:
    totals = [0.0, 0.1, 0.9, 1.9]
    expected = sequential_set_probabilities({i: 1 / (0.1 + total) for i, total in enumerate(totals)}, num_draws)
    penalties = [Penalty(error=total, format=0.0) for total in totals] + [CLEAN]
    rng, counts = random.Random(7), Counter[frozenset[int]]()
    for _ in range(12_000):
        keys, correct = keys_of(5, rng), [True] * 4 + [False]
        decisions = choose_siblings(
            [1, 1, 1, 1, 0], correct, penalties, keys, keep=num_draws + 1, mode=RocMode.paper, min_negative=1
        )
        counts[frozenset(kept_indices(decisions)) - {4}] += 1
    assert chi_square(counts, expected) < CHI_SQUARE_5_DOF_AT_0_999


def test_sort_mode_keeps_the_lowest_penalties_and_ties_in_rollout_order() -> None:
    totals = [0.5, 0.0, 1.0, 0.5, 0.5, 0.0]
    penalties = [Penalty(error=total, format=0.0) for total in totals] + [CLEAN] * 6
    kept = kept_indices(decide([1] * 6 + [0] * 6, penalties, keep=6, mode=RocMode.sort))
    assert [i for i in kept if i < 6] == [0, 1, 5]


@pytest.mark.parametrize("seed", range(5))
def test_equal_keys_keep_the_same_negatives_in_every_mode(seed: int) -> None:
    kept = {
        tuple(set(kept_indices(decide(REWARDS, PENALTIES, keep=4, mode=mode, seed=seed))) & set(NEGATIVES))
        for mode in DRAWING_MODES
    }
    assert len(kept) == 1


def test_the_keys_alone_decide() -> None:
    once, again, other = (decide([1, 0] * 16, keep=16, mode=RocMode.paper, seed=s) for s in (1, 1, 2))
    assert once == again
    assert once != other


def test_mode_none_keeps_everything_with_signal() -> None:
    decisions = decide([1, 0] * 8, keep=4, mode=RocMode.none)
    assert decisions == [Decision(reason=DropReason.kept, inclusion_weight=None)] * 16


def test_inclusion_weight_tells_the_draw() -> None:
    def weights(mode: RocMode) -> list[float | None]:
        return [d.inclusion_weight for d in decide(REWARDS, PENALTIES, keep=4, mode=mode)]

    paper = [1 / (0.1 + PENALTIES[i].total) if REWARDS[i] else 1.0 for i in range(8)]
    assert weights(RocMode.paper) == paper
    assert weights(RocMode.uniform) == [1.0] * 8
    assert weights(RocMode.sort) == [None if reward else 1.0 for reward in REWARDS]
    assert [d.inclusion_weight for d in decide([1, 0], keep=2, mode=RocMode.paper)] == [None, None]


# --- Failed siblings and bad input ---------------------------------------------------------------------


@pytest.mark.parametrize("num_scored", [0, 1])
def test_a_nearly_failed_group_can_be_resampled(num_scored: int) -> None:
    decisions = decide([1] * num_scored, keep=16, mode=RocMode.paper)
    assert [d.reason for d in decisions] == [DropReason.no_signal] * num_scored


@pytest.mark.parametrize("reward", [math.inf, math.nan])
def test_a_reward_that_is_not_finite_is_rejected(reward: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        choose_siblings([1, 0, reward], [True, False, False], [CLEAN] * 3, [1.0] * 3, keep=2, mode=RocMode.paper)


# --- Rewards other than 1 and 0 ------------------------------------------------------------------------


@given(
    siblings=st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 0.25, 1.0, 3.0]), st.booleans()), max_size=12),
    keep=st.integers(2, 6),
    mode=st.sampled_from(RocMode),
    seed=st.integers(0, 2**16),
)
def test_any_rewards_keep_a_signal_and_both_signs(
    siblings: list[tuple[float, bool]], keep: int, mode: RocMode, seed: int
) -> None:
    rewards, correct = [r for r, _ in siblings], [c for _, c in siblings]
    keys = keys_of(len(rewards), random.Random(seed))
    decisions = choose_siblings(rewards, correct, [CLEAN] * len(rewards), keys, keep=keep, mode=mode)
    kept = kept_indices(decisions)
    if len(set(rewards)) < 2:
        assert kept == [] and all(d.reason is DropReason.no_signal for d in decisions)
        return
    assert len(kept) == (len(rewards) if mode is RocMode.none else min(keep, len(rewards)))
    assert len({rewards[i] for i in kept}) > 1, "siblings of one reward would all have advantage 0"
    assert {correct[i] for i in kept} == set(correct)
    for is_correct, decision in zip(correct, decisions, strict=True):
        dropped = DropReason.dropped_positive if is_correct else DropReason.dropped_negative
        assert decision.reason is (DropReason.kept if decision.kept else dropped)


def test_positives_are_the_correct_ones_and_not_the_well_paid_ones() -> None:
    rewards, correct = [5.0, 5.0, 0.1, 0.2, 0.3, 0.4], [False, False, True, True, True, True]
    failing = Penalty(error=1.0, format=0.0)
    penalties = [CLEAN, CLEAN, failing, CLEAN, failing, CLEAN]
    decisions = choose_siblings(rewards, correct, penalties, [1.0] * 6, keep=4, mode=RocMode.sort)
    assert [i for i in kept_indices(decisions) if correct[i]] == [3, 5]


# --- Siblings that can end early -------------------------------------------------------------------------


def kept_of(outcomes: dict[int, float | None], keys: list[float], **draw: Any) -> frozenset[int]:
    """The kept siblings. outcomes: the penalty of a correct one, -1 of a wrong one, None of a failed one."""
    scored = [i for i, outcome in sorted(outcomes.items()) if outcome is not None]
    values = [outcomes[i] or 0.0 for i in scored]
    correct = [value >= 0 for value in values]
    penalties = [Penalty(error=max(0.0, value), format=0.0) for value in values]
    decisions = choose_siblings([float(c) for c in correct], correct, penalties, [keys[i] for i in scored], **draw)
    return frozenset(scored[k] for k in kept_indices(decisions))


def scored_of(outcomes: dict[int, float | None]) -> dict[int, tuple[bool, float]]:
    return {i: (o >= 0, max(0.0, o)) for i, o in outcomes.items() if o is not None}


def can_matter(sibling: int, done: dict[int, float | None], running: set[int], keys: list[float], **draw: Any) -> bool:
    """By enumeration: an outcome of the sibling keeps it, or changes which others are kept."""
    others = sorted(running - {sibling})
    for theirs in itertools.product((None, -1.0, 0.0, 2.0), repeat=len(others)):
        known = done | dict(zip(others, theirs, strict=True))
        without = kept_of(known, keys, **draw)
        if any(kept_of(known | {sibling: own}, keys, **draw) != without for own in (-1.0, 0.0, 2.0)):
            return True
    return False


@pytest.mark.parametrize("mode", RocMode)
def test_a_sibling_ends_early_exactly_if_no_outcome_can_matter(mode: RocMode) -> None:
    rng, num_ended, num_staying = random.Random(11), 0, 0
    for _ in range(400):
        keep, minimum, num_siblings = rng.randint(2, 4), rng.randint(1, 2), rng.randint(5, 10)
        keys = keys_of(num_siblings, rng)
        running = set(rng.sample(range(num_siblings), rng.randint(1, 3)))
        done = {
            i: rng.choice([None, -1.0, -1.0, -1.0, 0.0, 0.5, 1.5]) for i in range(num_siblings) if i not in running
        }
        draw = {"keep": keep, "mode": mode, "min_positive": minimum, "min_negative": minimum}
        ended = can_end(dict(enumerate(keys)), scored_of(done), running, **draw)
        left = set(running)
        for sibling in sorted(ended):
            assert not can_matter(sibling, done, left, keys, **draw)
            left.remove(sibling)
        assert all(can_matter(sibling, done, left, keys, **draw) for sibling in left)
        num_ended, num_staying = num_ended + len(ended), num_staying + len(left)
    assert num_staying > 100 and (num_ended > 20) == (mode is not RocMode.none)


@pytest.mark.parametrize("mode", DRAWING_MODES)
def test_early_ends_change_no_kept_set(mode: RocMode) -> None:
    """Groups of the paper's size, whose siblings end in a random order; some fail."""
    rng, num_ended = random.Random(5), 0
    for _ in range(300):
        rate, keys = rng.random(), keys_of(32, rng)
        outcomes: dict[int, float | None] = {
            i: None if rng.random() < 0.02 else rng.choice([0.0, 0.0, 0.0, 0.5, 1.0]) if rng.random() < rate else -1.0
            for i in range(32)
        }
        running, done = set(range(32)), dict[int, float | None]()
        for i in rng.sample(range(32), 32):
            if i in running:
                running.remove(i)
                done[i] = outcomes[i]
                ended = can_end(dict(enumerate(keys)), scored_of(done), running, keep=16, mode=mode)
                running -= ended
                num_ended += len(ended)
        assert kept_of(done, keys, keep=16, mode=mode) == kept_of(outcomes, keys, keep=16, mode=mode)
    assert num_ended
