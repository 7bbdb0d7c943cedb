"""Calls are found in order; an undecodable one has a reason and is never executed."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.chat.callforms import CLOSE, MAX_DEPTH, OPEN
from rocstar.engine.chat.toolcalls import DEFAULT, parse_tool_calls, spoken_text, without_tool_calls
from rocstar.engine.types import ToolCall, Turn, TurnForm


def call(body: str) -> str:
    return f"{OPEN}\n{body}\n{CLOSE}"


text = st.text(st.characters(exclude_characters="<"))
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(text, inner), max_leaves=4)
calls = st.builds(ToolCall, name=text, arguments=st.dictionaries(text, values, max_size=3))
said_and_called = st.tuples(text, calls)


PIECES = [OPEN, CLOSE, '{"name": "f", "arguments": {}}', "{", "}", "1", " "]


@given(made=st.lists(said_and_called, max_size=3), last=text, ascii_only=st.booleans())
def test_calls_and_text_come_back_as_written(made: list[tuple[str, ToolCall]], last: str, ascii_only: bool) -> None:
    wrote = ""
    for before, made_call in made:
        body = json.dumps({"name": made_call.name, "arguments": made_call.arguments}, ensure_ascii=ascii_only)
        wrote += before + call(body)
    assert parse_tool_calls(wrote + last) == tuple(made_call for _, made_call in made)
    assert without_tool_calls(wrote + last) == "".join(before for before, _ in made) + last


GOOD = '{"name": "f", "arguments": {"code": "1"}}'
LONG = "x = 1\n" * 200_000
DEEPEST = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)


@pytest.mark.parametrize(
    ("wrote", "reason"),
    [
        (f"{OPEN}{GOOD}", "missing </tool_call>"),
        (call("{'name': 'f'}"), "Expecting property name"),
        (call('{"name": "f" "arguments": {}}'), "Expecting ',' delimiter"),
        (call(""), "Expecting value"),
        (call(GOOD + GOOD), "Extra data"),
        (call(GOOD + " and so on"), "Extra data"),
        (call("Sure! " + GOOD), "Expecting value"),
        (call('{"name": "f", "name": "g", "arguments": {}}'), "a key is written twice"),
        (call('{"name": "f", "arguments": {"code": "1", "code": "2"}}'), "a key is written twice"),
        (call('{"name": "f", "arguments": {"code": NaN}}'), "NaN is not a number"),
        (call('{"name": "f", "arguments": {"code": -Infinity}}'), "-Infinity is not a number"),
        (call('{"name": "f", "arguments": {"code": 1e999}}'), "1e999 is not a number"),
        (call('{"name": "f", "arguments": {"code": ' + "9" * 400 + ".0}}"), "is not a number"),
        (call('{"name": "f", "arguments": {"code": "' + "\n" + '"}}'), "Invalid control character"),
        (call("[1]"), "the call is not a JSON object"),
        (call('"f"'), "the call is not a JSON object"),
        (call('{"arguments": {}}'), "'name' is missing"),
        (call('{"name": "f"}'), "'arguments' is missing"),
        (call('{"name": 1, "arguments": {}}'), "'name' is not a string"),
        (call('{"name": null, "arguments": {}}'), "'name' is not a string"),
        (call('{"name": "f", "arguments": "{}"}'), "'arguments' is not an object"),
        (call('{"name": "f", "arguments": null}'), "'arguments' is not an object"),
        (call('{"name": "f", "arguments": {"code": ' + "9" * 5000 + "}}"), "4300"),
        (call('{"name": "f", "arguments": {"code": ' + "[" * 100_000 + "}}"), "nested too deeply"),
        (call('{"name": "f", "arguments": {"code": [' + DEEPEST + "]}}"), "nested too deeply"),
        (call('{"name": "f", "arguments": {"code": ' + '{"a":' * 500 + "1" + "}" * 502), "nested too deeply"),
    ],
)
def test_undecodable_call_says_why(wrote: str, reason: str) -> None:
    (found,) = parse_tool_calls(wrote)
    assert found.name is None and found.arguments is None
    assert found.malformed is not None and reason in found.malformed


@given(made=st.lists(said_and_called, min_size=1, max_size=3), data=st.data())
def test_what_is_cut_off_is_never_executed(made: list[tuple[str, ToolCall]], data: st.DataObject) -> None:
    """Of a turn cut anywhere, the calls that may run are those that were whole, as they were written."""
    wrote, ends = "", []
    for before, made_call in made:
        wrote += before + call(json.dumps({"name": made_call.name, "arguments": made_call.arguments}))
        ends.append(len(wrote))
    at = data.draw(st.integers(0, len(wrote)))
    whole = [made_call for (_, made_call), end in zip(made, ends, strict=True) if end <= at]
    found = parse_tool_calls(wrote[:at])
    assert list(found[: len(whole)]) == whole
    assert [one.malformed for one in found[len(whole) :]] in ([], [f"missing {CLOSE}"])


@given(st.text() | st.lists(st.sampled_from([*PIECES, '"', ":", ",", "[", "]", "\\u0000", "\\", "1e9"])).map("".join))
def test_any_body_is_a_call_or_says_why(body: str) -> None:
    """A call that runs is in the text as JSON, and there is at most one for each opening tag."""
    calls = parse_tool_calls(call(body))
    assert len(calls) <= call(body).count(OPEN)
    found = calls[0]
    if found.malformed is None:
        told, _ = json.JSONDecoder().raw_decode(body.lstrip())
        assert (found.name, found.arguments) == (told["name"], told["arguments"])
        json.dumps(found.arguments, allow_nan=False)
    else:
        assert found.name is None and found.arguments is None and 0 < len(found.malformed) < 200


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (
            r'{"name": "\u0066", "arguments": {"code": "\u003c/tool_call>\\u0041\ud83d\ude00"}}',
            r"</tool_call>\u0041" + "\U0001f600",
        ),
        (r'{"name": "f", "arguments": {"code": "\ud83d"}}', "\ud83d"),
        (json.dumps({"name": "f", "arguments": {"code": LONG}}), LONG),
        ('{"name": "f", "arguments": {"code": ' + DEEPEST + "}}", json.loads(DEEPEST)),
    ],
    ids=["escapes", "half a surrogate", "long", "the deepest"],
)
def test_a_call_is_decoded_once_and_whole(body: str, code: Any) -> None:
    assert parse_tool_calls(call(body)) == (ToolCall(name="f", arguments={"code": code}),)


@pytest.mark.parametrize("wrote", ["", "no call", CLOSE, f"{CLOSE} then {GOOD}", "<TOOL_CALL>{}</TOOL_CALL>"])
def test_text_without_an_opening_tag_has_no_call(wrote: str) -> None:
    assert parse_tool_calls(wrote) == ()


def test_a_bad_call_does_not_hide_a_good_one() -> None:
    found = parse_tool_calls(f"a{OPEN}{{b{OPEN}{GOOD}{CLOSE}c{call(GOOD)}{OPEN}")
    good: Any = ToolCall(name="f", arguments={"code": "1"})
    assert [one.malformed for one in found] == ["missing </tool_call>", None, None]
    assert found[1] == found[2] == good


@pytest.mark.parametrize("code", [CLOSE, OPEN, f"{OPEN}x{CLOSE}", f"print('{OPEN}{{}}{CLOSE}')"])
def test_tags_inside_a_string_are_text(code: str) -> None:
    wrote = call(json.dumps({"name": "f", "arguments": {"code": code}}))
    assert parse_tool_calls(f"a{wrote}b{wrote}") == (ToolCall(name="f", arguments={"code": code}),) * 2
    assert without_tool_calls(f"a{wrote}b{wrote}c") == "abc"


@pytest.mark.parametrize(
    "wrote",
    [f"I could use {OPEN} here.", OPEN, f"{OPEN} or {OPEN}", f"{OPEN}[1]", f"the tag {OPEN}\n<answer>1</answer>"],
)
def test_a_mention_is_no_call(wrote: str) -> None:
    assert parse_tool_calls(wrote) == ()
    assert without_tool_calls(wrote) == wrote
    assert parse_tool_calls(f"{wrote} {call(GOOD)}") == parse_tool_calls(call(GOOD))


# ---- thoughts ----

DRAFT = f"<think>\nI could write {call(GOOD)} but <answer>1</answer> first.\n</think>\n\n"

READ, OPENED = TurnForm(skips_thoughts=False), TurnForm(opens_thought=True)
QUOTED = call(json.dumps({"name": "f", "arguments": {"code": "print('<think>')"}})) * 2
CLOSED = f"I draft {call(GOOD)}</think>{call(GOOD)}"


def turn(text: str, form: TurnForm = DEFAULT) -> Turn:
    return Turn(start=0, end=1, text=text, stopped=True, form=form)


@pytest.mark.parametrize(
    ("wrote", "form", "num_calls", "content"),
    [
        (f"a{DRAFT}b{call(GOOD)}c", DEFAULT, 1, "a\n\nbc"),
        (f"a<think>b{call(GOOD)}", DEFAULT, 0, "a"),
        (CLOSED, OPENED, 1, ""),
        (CLOSED, DEFAULT, 2, "I draft </think>"),
        (DRAFT + call(GOOD), READ, 2, DRAFT.replace(call(GOOD), "")),
        (f"a{QUOTED}b", DEFAULT, 2, "ab"),
        (f"<reason>so {call(GOOD)}</reason>", DEFAULT, 1, "<reason>so </reason>"),
    ],
)
def test_a_thought_has_no_calls_and_is_no_content(wrote: str, form: TurnForm, num_calls: int, content: str) -> None:
    found = parse_tool_calls(wrote, form)
    assert len(found) == num_calls and all(one.malformed is None for one in found)
    assert spoken_text([turn(wrote, form)]) == content


def test_texts_of_turns_are_lines_and_a_stream_keeps_its_thought() -> None:
    assert spoken_text([turn("a</think>b", OPENED), turn("c")]) == "b\nc"
    assert without_tool_calls(DRAFT) == DRAFT, "a stream has sent the thought before"
