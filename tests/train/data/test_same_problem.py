"""Two rows are one if they differ in typesetting alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.data.distinct import DistinctCounts
from rocstar.train.data.same_problem import conversation_key, question_key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is $3 + 4$?", "what is 3+4"),
        ("Let \\(x \\leq 2\\).", "Let $x ≤ 2$"),
        ("Compute $\\dfrac{1}{2} \\cdot 6$.", "Compute \\[ \\frac{1}{2} \\times 6 \\]"),
        ("John's age", "John’s  age"),
        ("**Find** $a−b$", "**Find** $a-b$."),
    ],
)
def test_typesetting_makes_no_other_problem(one: str, other: str) -> None:
    assert question_key(one) == question_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is $3 + 4$?", "What is $3 - 4$?"),
        ("$x \\leq 2$", "$x \\geq 2$"),
        ("Find $f(x)$.", "Find $f'(x)$."),
        ("Find $5!$", "Find $5$"),
        ("Is 2.5 whole?", "Is 25 whole?"),
        ("[asy] draw(a); [/asy] Find $x$.", "[asy] draw(b); [/asy] Find $x$."),
    ],
)
def test_another_sign_does(one: str, other: str) -> None:
    assert question_key(one) != question_key(other)


def test_turns_before_a_question_belong_to_it_and_system_messages_do_not() -> None:
    before = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    assert question_key("And now?", before) != question_key("And now?")
    assert question_key("And now?", [{"role": "system", "content": "Be brief."}]) == question_key("And now?")


def test_calls_belong_to_a_conversation_in_any_spelling() -> None:
    def called(arguments: object) -> bytes:
        call = {"function": {"name": "f", "arguments": arguments}}
        return conversation_key([{"role": "assistant", "content": "", "tool_calls": [call]}])

    assert called({"a": 1, "b": 2}) == called('{"b": 2,  "a": 1}') != called({"a": 1})


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=60), st.integers(1, 4))
def test_distinct_numbers_are_counted_up_to_a_limit(added: list[tuple[int, int]], most: int) -> None:
    counts = DistinctCounts(4, most=most)
    for place, number in added:
        counts.add([place], number)
    for place in range(4):
        assert counts.count(place) == min(most, len({number for p, number in added if p == place}))
