"""Content, thinking and calls are split the same way for any chunks of the text."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.chat.chat import SAMPLE, TokenText
from rocstar.engine.gateway.stream_parser import StopSequences, StreamParser, TurnText
from rocstar.engine.gateway.stream_parts import TextPart, ToolCallPart, merge_parts
from rocstar.engine.types import TurnForm
from tests.fakes.scripted_policy import ByteTokenizer

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
TAGS = ["<think>", "</think>", "<reason>", "</reason>", CALL, "<tool_call>", "<", "</"]
PIECES = [*TAGS, "a", " ", "\n", "é", "🙂", "STOP", "STO", "OPS"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


def cut(text: str, places: Sequence[int]) -> list[str]:
    at = sorted({place % (len(text) + 1) for place in places})
    return [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]


def said(turns: Sequence[Sequence[str]], opening: str = "") -> dict[str, str]:
    parser, found = StreamParser(TurnForm()), {"content": "", "reasoning_content": ""}
    for pieces in turns:
        parser.begin_turn(opening)
        for piece in pieces:
            for kind, text in parser.add(piece):
                found[kind] += text
        for kind, text in parser.end_turn():
            found[kind] += text
    return found


@given(st.lists(st.tuples(TEXTS, st.lists(st.integers(0, 400), max_size=12)), min_size=1, max_size=3))
def test_cuts_change_nothing_of_what_is_said(turns: list[tuple[str, list[int]]]) -> None:
    assert said([cut(text, places) for text, places in turns]) == said([[text] for text, _ in turns])


@given(TEXTS, st.lists(st.integers(0, 400), max_size=12))
def test_cuts_change_nothing_of_where_a_text_stops(text: str, places: list[int]) -> None:
    def stopped(pieces: list[str]) -> tuple[str, str]:
        until = StopSequences(["STOP", "TO", "PSX"])
        payload = "".join(until.add(piece) for piece in pieces)
        return payload + until.rest(), until.found

    assert stopped(cut(text, places)) == stopped([text])


def test_a_text_stops_before_the_stop_text() -> None:
    until = StopSequences(["\n\n", "Q:"])
    assert [until.add(piece) for piece in ("one\n", "two\n", "\nthree")] == ["one", "\ntwo", ""]
    assert until.found and not until.rest()


@given(st.text(alphabet="aé🙂\ufffd<", max_size=20), st.lists(st.integers(0, 80), max_size=8), st.booleans())
def test_tokens_give_the_text_that_they_give_together(text: str, places: list[int], knows_tokens: bool) -> None:
    """The tokens are bytes here, so that nearly every one is a part of a character."""
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    known = TokenText(tokenizer.decode, tokenizer.encode(SAMPLE))
    turn = TurnText(tokenizer.decode, known.sure_text if knows_tokens else lambda tokens: None)
    at = [0, *sorted(min(place, len(ids)) for place in places), len(ids)]
    pieces = [turn.add(ids[a:b]) for a, b in itertools.pairwise(at)]
    assert "".join(pieces) + turn.rest() == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


def test_a_partial_character_at_the_end_becomes_a_replacement_character() -> None:
    tokenizer = ByteTokenizer()
    turn = TurnText(tokenizer.decode, lambda tokens: None)
    assert turn.add(tokenizer.encode("🙂")[:1]) == ""
    assert turn.rest() == "\ufffd"


THINKS = [["<think>Let me", " see.</think>\n\nFirst: ", CALL], ["So ", "<think>4!</thi", "nk> it is 4 "]]


@pytest.mark.parametrize(
    ("turns", "opening", "content", "reasoning"),
    [
        (THINKS, "", "First:\nSo  it is 4", "Let me see.\n4!"),
        ([["I add.</reason><answer>4</answer>"]], "<reason>", "<answer>4</answer>", "I add."),
        ([["a <tool_call> is written so"]], "", "a <tool_call> is written so", ""),
    ],
)
def test_thoughts_calls_and_the_answer_are_told_apart(
    turns: list[list[str]], opening: str, content: str, reasoning: str
) -> None:
    assert said(turns, opening) == {"content": content, "reasoning_content": reasoning}


def test_neighbours_of_one_kind_are_one_text() -> None:
    use = ToolCallPart(choice=0, id="x", name="f", arguments={})
    a, b, d, e, f, g = (TextPart(0, "content", text) for text in "abdefg")
    c = TextPart(1, "content", "c")
    ab, efg = TextPart(0, "content", "ab"), TextPart(0, "content", "efg")
    assert merge_parts([a, b, c, d, use, e, f, g]) == [ab, c, d, use, efg]
