"""Strict mode: the vectors that lenient graders get wrong, and what each rule accepts and no more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.verify import (
    Extraction,
    ExtractionFailure,
    exact_match,
    extract_answer,
    num_answers,
    plain_numbers_equal,
)


def boxed(value: str) -> str:
    return f"So.\n<answer>\\boxed{{{value}}}</answer>"


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("bla bla 17 and 42", ExtractionFailure.no_answer),
        ("\\boxed{42}", ExtractionFailure.no_answer),
        ("<answer>\\boxed{42}", ExtractionFailure.no_answer),
        ("</answer>\\boxed{42}<answer>", ExtractionFailure.no_answer),
        ("<answer> 42 </answer>", ExtractionFailure.no_box),
        ("<answer>\\boxed{42</answer>}", ExtractionFailure.no_box),
        ("<answer>\\boxed{\\}</answer>", ExtractionFailure.no_box),
        ("\\boxed{42} <answer>42</answer>", ExtractionFailure.no_box),
        (boxed("42") + boxed("42"), ExtractionFailure.several_answers),
        (boxed("42") + "<answer>", ExtractionFailure.several_answers),
        ("I write </answer> at the end. " + boxed("42"), ExtractionFailure.several_answers),
    ],
)
def test_a_text_without_one_boxed_answer_has_a_typed_failure(text: str, failure: ExtractionFailure) -> None:
    assert extract_answer(text) == Extraction(failure=failure)


@pytest.mark.parametrize(
    ("inside", "answer"),
    [
        ("\\boxed{42}", "42"),
        ("It is $\\boxed{ 42 }$.", "42"),
        ("\\boxed{41} or \\boxed{42}", "42"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\left\\{ 1 \\right.}", "\\left\\{ 1 \\right."),
        ("\\boxed{\\boxed{42}}", "42"),
        ("\\boxed{}", ""),
    ],
)
def test_the_last_box_is_read_to_its_matching_brace(inside: str, answer: str) -> None:
    assert extract_answer(f"x <answer>{inside}</answer>") == Extraction(answer=answer)


@given(st.text(alphabet=st.sampled_from("ab{}\\12 "), max_size=30))
def test_an_extraction_is_an_answer_or_a_failure(inside: str) -> None:
    extraction = extract_answer(f"<answer>{inside}</answer>")
    assert (extraction.answer is None) != (extraction.failure is None)


@given(st.integers())
def test_any_boxed_integer_comes_back(value: int) -> None:
    extraction = extract_answer(boxed(str(value)))
    assert extraction.answer is not None
    assert exact_match(extraction.answer, str(value))


def test_an_extraction_cannot_hold_both_or_neither() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        Extraction()
    with pytest.raises(ValueError, match="exactly one"):
        Extraction(answer="1", failure=ExtractionFailure.no_box)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("nothing", 0),
        ("<answer> open", 0),
        ("</answer><answer>", 0),
        (boxed("1"), 1),
        (boxed("1") * 3, 3),
        (boxed("1") + "<answer>", 2),
    ],
)
def test_answer_blocks_are_counted_for_the_format_penalty(text: str, count: int) -> None:
    assert num_answers(text) == count


LENIENT_GRADERS_ACCEPT = [
    ("4200", "42"),
    ("0.42", "42"),
    ("42\\%", "42"),
    ("42%", "42"),
    ("12346", "12345"),
    ("100001", "100000"),
    ("41", "42"),
    ("1, 2, 42", "42"),
    ("4,2", "42"),
    ("1,23", "123"),
    ("", ""),
    ("$", "$"),
    ("-42", "42"),
    ("4 2", "42"),
]


@pytest.mark.parametrize(("prediction", "truth"), LENIENT_GRADERS_ACCEPT)
def test_a_near_miss_is_not_the_answer(prediction: str, truth: str) -> None:
    assert not exact_match(prediction, truth)
    assert plain_numbers_equal(prediction, truth) is not True


@pytest.mark.parametrize(
    ("prediction", "truth"),
    [
        ("42", "42"),
        (" 42. ", "42"),
        ("+42", "42"),
        ("042", "42"),
        ("-0", "0"),
        ("$42$", "42"),
        ("\\$1,234,567", "1234567"),
        ("-1,234.50", "-1234.50"),
        ("\\frac{1}{2}", "\\frac{1}{2}"),
        ("a  b", "a b"),
        ("9" * 6000, "9" * 6000),
    ],
)
def test_exact_match_ignores_only_what_carries_no_value(prediction: str, truth: str) -> None:
    assert exact_match(prediction, truth)
    assert exact_match(truth, prediction)


@given(st.integers(), st.integers())
def test_integers_match_iff_they_are_equal(a: int, b: int) -> None:
    assert exact_match(f"{a:,}", str(b)) == (a == b)
    assert plain_numbers_equal(f"{a:+}", str(b)) is (a == b)


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ("42.0", "42", True),
        (".5", "0.50", True),
        ("42.1", "42", False),
        ("1/2", "0.5", None),
        ("1e3", "1000", None),
    ],
)
def test_plain_numbers_compare_exactly_and_nothing_else_is_one(
    left: str, right: str, equal: bool | None
) -> None:
    assert plain_numbers_equal(left, right) is equal
