"""Scores of a set: both denominators, what is short, and no dependence on who finished first."""

import random

import pytest

from rocstar.train.evaluation.statistics.attempts import AttemptFacts, Questions
from rocstar.train.evaluation.statistics.scores import CountedScores, powers_up_to, scores


def facts(verdicts: str, answers: str = "") -> list[AttemptFacts]:
    """One attempt for each letter: Right, Wrong, Failed."""
    return [
        AttemptFacts(
            is_correct={"R": True, "W": False, "F": None}[verdict],
            answer=(answers[place] if answers else None),
            tokens=100 * (place + 1),
            turns=place + 1,
            calls=2,
            errors=place % 2,
            is_truncated=verdict == "W",
        )
        for place, verdict in enumerate(verdicts)
    ]


QUESTIONS = [facts("RRWF"), facts("WWWW"), facts("FFFF"), facts("RFFF")]


def both(questions: Questions) -> tuple[CountedScores, CountedScores]:
    """Failed attempts left out, and failed attempts as wrong ones."""
    ks = powers_up_to(max(map(len, questions), default=0))
    return scores(questions, ks, failed_as_wrong=False), scores(questions, ks, failed_as_wrong=True)


def test_failed_is_left_out_or_wrong_and_both_are_told() -> None:
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
    assert scores(QUESTIONS, [8], failed_as_wrong=True).pass_at[8] is None


def test_the_majority_is_told_where_answers_are_known() -> None:
    assert both(QUESTIONS)[0].maj_at == {}
    found = both([facts("RRW", "aab"), facts("WWR", "cda")])[0].maj_at
    assert found[1] == pytest.approx(0.5) and found[2] == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert scores([facts("RRW", "aab"), facts("WWR", "cda")], [3], failed_as_wrong=False).maj_at == (
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


def test_nothing_is_told_of_nothing() -> None:
    assert (both([])[0].avg, both([])[0].interval) == (None, None)
    assert both([facts("FF")])[0].interval is None
    assert powers_up_to(0) == [] and powers_up_to(1) == [1] and powers_up_to(6) == [1, 2, 4, 6]
