"""Scores of a set: both denominators, what is short, and no dependence on who finished first."""

import json
import random

import pytest

from rocstar.train.evaluation.statistics.attempts import AttemptFacts
from rocstar.train.evaluation.statistics.scores import powers_up_to, set_scores


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
            is_unextracted=verdict == "W",
        )
        for place, verdict in enumerate(verdicts)
    ]


QUESTIONS = [facts("RRWF"), facts("WWWW"), facts("FFFF"), facts("RFFF")]


def test_failed_is_left_out_or_wrong_and_both_are_told() -> None:
    found = set_scores(QUESTIONS)
    out, wrong = found.failed_left_out, found.failed_as_wrong
    assert (found.num_questions, found.num_attempts, found.failed) == (4, 16, 8)
    assert (found.truncated, found.unextracted) == (5, 5)
    assert (out.num_questions, wrong.num_questions) == (3, 4)
    assert out.avg == pytest.approx((2 / 3 + 0 + 1) / 3) and wrong.avg == pytest.approx((2 / 4 + 1 / 4) / 4)
    for each in (out, wrong):
        assert each.interval is not None and each.avg is not None
        assert each.interval[0] < each.avg < each.interval[1]


def test_a_question_with_too_few_attempts_is_counted_and_in_no_number_for_k() -> None:
    found = set_scores(QUESTIONS)
    assert found.failed_left_out.n_short == {1: 1, 2: 2, 4: 3}
    assert found.failed_left_out.pass_at == pytest.approx({1: 5 / 9, 2: 0.5, 4: 0.0})
    assert found.failed_left_out.pass_power == pytest.approx({1: 5 / 9, 2: 1 / 6, 4: 0.0})
    assert found.failed_as_wrong.n_short == {1: 0, 2: 0, 4: 0}
    assert found.failed_as_wrong.pass_at[4] == 0.5
    assert set_scores(QUESTIONS, k=8).failed_as_wrong.pass_at[8] is None


def test_the_majority_is_told_where_answers_are_known() -> None:
    assert set_scores(QUESTIONS).failed_left_out.maj_at == {}
    found = set_scores([facts("RRW", "aab"), facts("WWR", "cda")]).failed_left_out.maj_at
    assert found == pytest.approx({1: 0.5, 2: (2 / 3 + 1 / 3) / 2, 3: (1 + 1 / 3) / 2})


def test_what_the_attempts_took_is_of_scored_attempts() -> None:
    found = set_scores(QUESTIONS)
    assert found.tokens == pytest.approx((200 + 250 + 100) / 3) and found.turns == pytest.approx(5.5 / 3)
    assert found.calls == 2.0 and found.tool_error_share == pytest.approx((1 + 2) / 16)


def test_who_finished_first_changes_no_bit() -> None:
    rng = random.Random(3)
    questions = [facts("".join(rng.choices("RWF", k=7)), "abcabda") for _ in range(40)]
    first = json.dumps(set_scores(questions).as_json())
    for _ in range(5):
        rng.shuffle(questions)
        for attempts in questions:
            rng.shuffle(attempts)
        assert json.dumps(set_scores(questions).as_json()) == first


def test_nothing_is_told_of_nothing() -> None:
    found = set_scores([])
    assert (found.failed_left_out.avg, found.failed_left_out.interval, found.tokens) == (None, None, None)
    assert set_scores([facts("FF")]).failed_left_out.interval is None
    assert powers_up_to(0) == [] and powers_up_to(1) == [1] and powers_up_to(6) == [1, 2, 4, 6]
