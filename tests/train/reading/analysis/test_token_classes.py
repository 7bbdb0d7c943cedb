"""Every token that the policy wrote has one class, and it is the right one."""

from collections.abc import Sequence

import numpy as np
import pytest

from rocstar.train.reading.analysis import token_classes
from rocstar.train.reading.analysis.statistics.estimates import Lead
from rocstar.train.reading.analysis.token_classes import CLASSES, TokenClass, split_turns, token_starts
from rocstar.train.tasks import verify

from .made_trajectories import CALL, decode, told

ANSWER = "<answer>\\boxed{1}</answer>"


def test_an_answer_begins_where_the_judge_looks_for_it() -> None:
    assert token_classes.ANSWER == verify.OPEN_TAG


def letters(trajectory: object, window: int = 3) -> list[str]:
    """Each turn with a letter for each token's class."""
    shown = {
        TokenClass.first_of_turn: "f",
        TokenClass.after_ok: "o",
        TokenClass.after_error: "e",
        TokenClass.call: "c",
        TokenClass.answer: "a",
        TokenClass.reason_before_call: "r",
        TokenClass.reason_before_answer: "b",
    }
    return [
        "".join(shown[CLASSES[k]] for k in turn.class_U)
        for turn in split_turns(trajectory, decode, window=window)  # type: ignore[arg-type]
    ]


IN_CODE = '<tool_call>{"name": "p", "arguments": {"code": "<answer>"}}</tool_call>'
TORN = '<tool_call>{"name": "p", "arg'


@pytest.mark.parametrize(
    ("parts", "classes"),
    [
        (
            [
                ("I try." + CALL + "$", "boom", True),
                ("Again!" + CALL, "fine", False),
                ("It is one: " + ANSWER + "$", "", None),
            ],
            ["fffrrr" + "c" * (len(CALL) + 1), "eeerrr" + "c" * len(CALL), "ooo" + "b" * 8 + "a" * (len(ANSWER) + 1)],
        ),
        (  # an answer in a program is none, and between calls there is reasoning
            [("xyz." + IN_CODE + " and " + CALL, "", None)],
            ["fffr" + "c" * len(IN_CODE) + "r" * 5 + "c" * len(CALL)],
        ),
        ([("So: " + TORN, "", None)], ["fffr" + "c" * len(TORN)]),
    ],
)
def test_every_token_has_its_class(parts: list[tuple[str, str, bool | None]], classes: list[str]) -> None:
    assert letters(told(*parts)) == classes


def test_a_turn_that_answers_the_user_is_no_turn_behind_a_tool() -> None:
    trajectory = told(("Hello.", "And now?", None), ("Well.", "", None))
    assert [turn.lead for turn in split_turns(trajectory, decode, window=2)] == [Lead.asked, Lead.asked]


def test_one_error_among_several_results_is_an_error_only_behind_it() -> None:
    trajectory = told(("a" + CALL, "x", True), ("b" + CALL, "y", False), ("c", "", None))
    assert [turn.lead for turn in split_turns(trajectory, decode, window=2)] == [Lead.asked, Lead.error, Lead.ok]


def test_the_turns_tile_what_the_policy_wrote() -> None:
    trajectory = told(("a" + CALL, "x", True), ("b", "ask", None), ("c" + ANSWER, "", None))
    mask, seen = trajectory.loss_mask(), np.zeros(len(trajectory.ids), int)
    for turn in split_turns(trajectory, decode, window=8):
        seen[turn.first : turn.first + len(turn.ids)] += 1
    assert (seen == mask).all()


BYTES = "a\u00e9\U0001f600b".encode()


def decode_bytes(ids: Sequence[int]) -> str:
    """A token is a byte."""
    return bytes(ids).decode(errors="replace")


def test_bytes_that_are_a_character_together_count_for_the_first_of_them() -> None:
    text, starts = token_starts(list(BYTES), decode_bytes)
    assert text == "a\u00e9\U0001f600b"
    assert starts.tolist() == [0, 1, 2, 2, 3, 3, 3, 3]


def test_a_torn_character_at_the_end_has_its_place() -> None:
    text, starts = token_starts(list("ab\U0001f600".encode())[:-1], decode_bytes)
    assert text.startswith("ab") and starts.tolist()[:3] == [0, 1, 2]
    assert len(starts) == 5


def decode_pieces(ids: Sequence[int]) -> str:
    """As SentencePiece does: every word brings a space along, but for the first of a text."""
    return " ".join(("zero", "one", "two", "three")[k] for k in ids)


def test_a_tokenizer_that_joins_with_spaces_is_asked_in_context() -> None:
    text, starts = token_starts([1, 2, 3], decode_pieces)
    assert text == "one two three" and starts.tolist() == [0, 3, 7]


@pytest.mark.parametrize("ids", [[], [5]])
def test_short_turns_have_places(ids: list[int]) -> None:
    text, starts = token_starts(ids, decode)
    assert len(starts) == len(ids) == len(text)
