"""The answer is the box of the last complete block, outside of tool calls; blocks are counted for Eq. 5."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.chat.toolcalls import spoken_text
from rocstar.train.tasks.latex import closing_brace
from rocstar.train.tasks.verify import Extraction, extract_answer, num_answers


def boxed(value: str) -> str:
    return f"So.\n<answer>\\boxed{{{value}}}</answer>"


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("bla bla 17 and 42", "no_answer"),
        ("\\boxed{42}", "no_answer"),
        ("<answer>\\boxed{42}", "no_answer"),
        ("</answer>\\boxed{42}<answer>", "no_answer"),
        ("<answer> 42 </answer>", "no_box"),
        ("<answer>\\boxed{42</answer>}", "no_box"),
        ("<answer>\\boxed{\\}</answer>", "no_box"),
        ("\\boxed{42} <answer>42</answer>", "no_box"),
        (boxed("42") + "<answer>none</answer>", "no_box"),
        (
            '<tool_call>{"name": "f", "arguments": {"code": "# <answer>\\\\boxed{42}</answer>"}}</tool_call>',
            "no_answer",
        ),
        ("<tool_call>" + boxed("42") + "</tool_call>", "no_answer"),
    ],
)
def test_a_text_without_a_boxed_answer_has_a_typed_failure(text: str, failure: Any) -> None:
    assert extract_answer(text) == Extraction(None, failure)


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


@pytest.mark.parametrize(
    "text",
    [
        boxed("41") + boxed("42"),
        boxed("42") + "<answer>",
        boxed("42") + " </answer>",
        "I write </answer> at the end. " + boxed("42"),
        "I must put it inside <answer> </answer> tags. " + boxed("42"),
        "I use <answer> tags. " + boxed("42"),
        "I could <tool_call> now. " + boxed("42"),
        '<tool_call>{"name": "f", "arguments": {"code": "<answer>\\\\boxed{1}</answer>"}}</tool_call>' + boxed("42"),
        boxed("42") + '<tool_call>{"name": "f", "arguments": {"code": "<answer>\\\\boxed{1}</answer>"}}</tool_call>',
    ],
)
def test_the_last_complete_block_counts(text: str) -> None:
    assert extract_answer(text) == Extraction(answer="42")


PARTS = (
    "<answer>", "</answer>", "\\boxed{1}", "\\boxed 2", "\\fbox {3}", "\\boxed{4", "<think>", "</think>",
    "<", "x",
)  # fmt: skip


@given(st.lists(st.sampled_from(PARTS), max_size=12).map("".join))
def test_the_answer_is_the_last_box_of_the_last_closed_block(text: str) -> None:
    *closed, _ = spoken_text(text).split("</answer>")
    blocks = [part.rpartition("<answer>")[2] for part in closed if "<answer>" in part]
    boxes = list(re.finditer(r"\\(?:boxed|fbox)\s*\{", blocks[-1])) if blocks else []
    end = closing_brace(blocks[-1], boxes[-1].end() - 1) if boxes else None
    answer = None if end is None else blocks[-1][boxes[-1].end() : end].strip()
    assert extract_answer(text).answer == answer
    assert bool(num_answers(text)) == bool(blocks)
    assert num_answers(text) in (0, max(spoken_text(text).count(tag) for tag in ("<answer>", "</answer>")))


@given(st.text(alphabet=st.sampled_from("ab{}\\12 "), max_size=30))
def test_an_extraction_is_an_answer_or_a_failure(inside: str) -> None:
    extraction = extract_answer(f"<answer>{inside}</answer>")
    assert (extraction.answer is None) == bool(extraction.failure)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("nothing", 0),
        ("<answer> open", 0),
        ("</answer><answer>", 0),
        (boxed("1"), 1),
        (boxed("1") * 3, 3),
        (boxed("1") + "<answer>", 2),
        ("inside <answer> </answer> tags: " + boxed("1"), 2),
        ('<tool_call>{"name": "f", "arguments": {"code": "<answer></answer>"}}</tool_call>' + boxed("1"), 1),
    ],
)
def test_answer_blocks_are_counted_for_the_format_penalty(text: str, count: int) -> None:
    assert num_answers(text) == count
