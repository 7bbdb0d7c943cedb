"""Scores of a set: both denominators, short questions, and independence of the order."""

import random
from collections import Counter
from itertools import combinations, product
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.evaluation.statistics.scores import (
    CountedScores,
    Questions,
    Vote,
    compute_scores,
    maj_at_k,
    pass_at_k,
    pass_power_k,
    powers_up_to,
)


def facts(verdicts: str, answers: str = "") -> list[Vote]:
    """One attempt for each letter: Right, Wrong, Failed."""
    return [
        ({"R": True, "W": False, "F": None}[verdict], answers[place] if answers else None)
        for place, verdict in enumerate(verdicts)
    ]


QUESTIONS = [facts("RRWF"), facts("WWWW"), facts("FFFF"), facts("RFFF")]


def both(questions: Questions) -> tuple[CountedScores, CountedScores]:
    """Failed attempts left out, and failed attempts as wrong ones."""
    ks = powers_up_to(max(map(len, questions), default=0))
    return compute_scores(questions, ks, failed_as_wrong=False), compute_scores(questions, ks, failed_as_wrong=True)


def test_failed_attempts_are_left_out_or_wrong() -> None:
    out, wrong = both(QUESTIONS)
    assert (out.num_questions, wrong.num_questions) == (3, 4)
    assert out.avg == pytest.approx((2 / 3 + 0 + 1) / 3) and wrong.avg == pytest.approx((2 / 4 + 1 / 4) / 4)
    for each in (out, wrong):
        assert each.interval is not None and each.avg is not None
        assert each.interval[0] < each.avg < each.interval[1]


def test_a_question_with_too_few_attempts_is_counted_and_in_no_number_for_k() -> None:
    out, wrong = both(QUESTIONS)
    assert out.n_short == {1: 1, 2: 2, 4: 3}
    assert out.pass_at == pytest.approx({1: 5 / 9, 2: 0.5, 4: 0.0})
    assert out.pass_power == pytest.approx({1: 5 / 9, 2: 1 / 6, 4: 0.0})
    assert wrong.n_short == {1: 0, 2: 0, 4: 0}
    assert wrong.pass_at[4] == 0.5
    assert compute_scores(QUESTIONS, [8], failed_as_wrong=True).pass_at[8] is None


def test_the_majority_needs_answers() -> None:
    assert both(QUESTIONS)[0].maj_at == {}
    found = both([facts("RRW", "aab"), facts("WWR", "cda")])[0].maj_at
    assert found[1] == pytest.approx(0.5) and found[2] == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert compute_scores([facts("RRW", "aab"), facts("WWR", "cda")], [3], failed_as_wrong=False).maj_at == (
        pytest.approx({3: (1 + 1 / 3) / 2})
    )


def test_who_finished_first_changes_no_bit() -> None:
    rng = random.Random(3)
    questions = [facts("".join(rng.choices("RWF", k=7)), "abcabda") for _ in range(40)]
    first = both(questions)
    for _ in range(5):
        rng.shuffle(questions)
        for attempts in questions:
            rng.shuffle(attempts)
        assert both(questions) == first


def test_no_attempt_gives_no_score() -> None:
    assert (both([])[0].avg, both([])[0].interval) == (None, None)
    assert both([facts("FF")])[0].interval is None
    assert powers_up_to(0) == [] and powers_up_to(1) == [1] and powers_up_to(6) == [1, 2, 4, 6]


@pytest.mark.parametrize("n", range(1, 9))
def test_pass_at_k_and_pass_power_k_are_means_over_all_draws(n: int) -> None:
    for c, k in product(range(n + 1), range(1, n + 1)):
        draws = list(combinations([1] * c + [0] * (n - c), k))
        assert pass_at_k(n, c, k) == pytest.approx(fmean(any(draw) for draw in draws))
        assert pass_power_k(n, c, k) == pytest.approx(fmean(all(draw) for draw in draws))


def majority(answers: list[str | None], correct: list[bool], k: int) -> float:
    """By the definition: in each draw the most frequent answers share the vote."""

    def rightness(answer: str) -> float:
        return fmean(c for a, c in zip(answers, correct, strict=True) if a == answer)

    values = []
    for draw in combinations(answers, k):
        votes = Counter(answer for answer in draw if answer is not None)
        winners = [a for a, number in votes.items() if number == max(votes.values())]
        values.append(fmean(map(rightness, winners)) if winners else 0.0)
    return fmean(values)


@given(st.lists(st.tuples(st.sampled_from([None, "a", "b", "c", "d", "e"]), st.booleans()), min_size=1, max_size=8))
def test_maj_at_k_of_any_verdicts_is_a_mean_over_all_draws(attempts: list[tuple[str | None, bool]]) -> None:
    """Also where an answer was judged both ways. A verdict without an answer is no vote."""
    answers = [answer for answer, _ in attempts]
    correct = [is_right and answer is not None for answer, is_right in attempts]
    for k in range(1, len(attempts) + 1):
        found = maj_at_k(answers, correct, k)
        assert found == pytest.approx(majority(answers, correct, k))
        assert found == maj_at_k(answers[::-1], correct[::-1], k)


def test_a_tie_is_decided_by_lot_and_not_by_place() -> None:
    """Of 64 attempts maj@1 is avg@64, and maj@64 the vote itself."""
    answers = ["x"] * 20 + [f"wrong {n % 9}" for n in range(44)]
    correct = [answer == "x" for answer in answers]
    assert (maj_at_k(answers, correct, 1), maj_at_k(answers, correct, 64)) == (pytest.approx(20 / 64), 1.0)
    assert maj_at_k(["a", "b"], [True, False], 2) == maj_at_k(["b", "a"], [False, True], 2) == 0.5
    assert maj_at_k(["a", "b", "c"], [True, False, False], 3) == pytest.approx(1 / 3)
    assert maj_at_k([None, None], [False, False], 2) == 0.0


@pytest.mark.parametrize("k", [0, 4])
def test_k_is_one_to_n(k: int) -> None:
    for score, attempts in ((pass_at_k, (3, 1)), (pass_power_k, (3, 1)), (maj_at_k, (["a"] * 3, [True] * 3))):
        with pytest.raises(ValueError, match=f"k = {k} of 3 attempts"):
            score(*attempts, k)  # type: ignore[operator]
