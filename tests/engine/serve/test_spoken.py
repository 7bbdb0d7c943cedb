"""What a policy says is told apart from what it thinks and calls, wherever the text is cut."""

from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.serve.stream_parser import StopSequences, StreamParser, TurnText
from rocstar.engine.serve.stream_parts import TextPart, ToolCallPart, merge_parts
from rocstar.engine.types import TurnForm
from tests.fakes.scripted_policy import ByteTokenizer

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
PIECES = [
    "<think>",
    "</think>",
    "<reason>",
    "</reason>",
    CALL,
    "<tool_call>",
    "<",
    "</",
    "a",
    " ",
    "\n",
    "é",
    "🙂",
]
TEXTS = st.lists(st.sampled_from([*PIECES, "STOP", "STO", "OPS"]), max_size=12).map("".join)


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
    def stopped(pieces: list[str]) -> tuple[str, bool]:
        until = StopSequences(["STOP", "TO", "PSX"])
        payload = "".join(until.add(piece) for piece in pieces)
        return payload + until.rest(), until.is_truncated

    assert stopped(cut(text, places)) == stopped([text])


def test_a_text_stops_before_the_stop_text() -> None:
    until = StopSequences(["\n\n", "Q:"])
    assert [until.add(piece) for piece in ("one\n", "two\n", "\nthree")] == ["one", "\ntwo", ""]
    assert until.is_truncated and not until.rest()


@given(st.text(alphabet="aé🙂\ufffd<", max_size=20))
def test_tokens_give_the_text_that_they_give_together(text: str) -> None:
    """The tokens are bytes here, so that nearly every one is a part of a character."""
    tokenizer = ByteTokenizer()
    turn = TurnText(tokenizer.decode)
    pieces = [turn.add(token) for token in tokenizer.encode(text)]
    assert "".join(pieces) + turn.rest() == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


def test_half_a_character_at_the_end_is_shown_as_such() -> None:
    tokenizer = ByteTokenizer()
    turn = TurnText(tokenizer.decode)
    assert turn.add(tokenizer.encode("🙂")[0]) == ""
    assert turn.rest() == "\ufffd"


def test_thoughts_calls_and_the_answer_are_told_apart() -> None:
    turns = [["<think>Let me", " see.</think>\n\nFirst: ", CALL], ["So ", "<think>4!</thi", "nk> it is 4 "]]
    assert said(turns) == {"content": "First:\nSo  it is 4", "reasoning_content": "Let me see.\n4!"}


def test_a_template_may_open_the_thought() -> None:
    assert said([["I add.</reason><answer>4</answer>"]], opening="<reason>") == {
        "content": "<answer>4</answer>",
        "reasoning_content": "I add.",
    }


def test_a_mention_of_a_call_is_text() -> None:
    assert said([["a <tool_call> is written so"]])["content"] == "a <tool_call> is written so"


def test_neighbours_of_one_kind_are_one_text() -> None:
    use = ToolCallPart(choice=0, id="x", name="f", arguments={})
    one: Callable[[str], TextPart] = lambda text: TextPart(0, "content", text)  # noqa: E731
    payload = [one("a"), one("b"), TextPart(1, "content", "c"), one("d"), use, one("e"), one("f"), one("g")]
    assert merge_parts(payload) == [one("ab"), TextPart(1, "content", "c"), one("d"), use, one("efg")]
