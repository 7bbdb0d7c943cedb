"""Every call form: calls are read back as the template writes them, for any chunks; nothing raises."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.chat.boundaries import ChatError
from rocstar.engine.chat.callforms import FORMS, schemas_of
from rocstar.engine.chat.chat import ChatFormat
from rocstar.engine.chat.toolcalls import parse_tool_calls, spoken_text, tool_call_spans, without_tool_calls
from rocstar.engine.gateway.stream_parser import StreamParser
from rocstar.engine.types import CALL_FORMS, ToolCall, Turn, TurnForm
from tests.fakes.scripted_policy import CHATML_TOKENS, ByteTokenizer

from .template_families import FAMILIES, FRAME, chat_of, written_by

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {
                "code": {"type": "string"},
                "count": {"type": "integer"},
                "share": {"type": "number"},
                "flag": {"type": "boolean"},
                "items": {"type": "array"},
                "more": {"type": "object"},
                "none": {"type": ["string", "null"]},
            },
        },
    },
}
SCHEMAS = schemas_of([TOOL])
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
tags = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|tool_call_end|>", "<parameter=a>"]
bits = [*tags, '"', "'", "\\", "]", "\n"]
pieces = [*bits, "[", "{", "}", "f(", "code=", '"name": "f"', ", ", "<function=f>", "</function>"]
code = text | st.lists(st.sampled_from([*bits, "x"]), max_size=6).map("".join)
numbers = st.integers(-(2**60), 2**60)
leaves = numbers | st.booleans() | st.none() | code
arguments = st.fixed_dictionaries(
    {"code": code},
    optional={
        "count": numbers,
        "share": st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.booleans(),
        "items": st.lists(leaves, max_size=3),
        "more": st.dictionaries(text, leaves, max_size=2),
    },
)
forms = pytest.mark.parametrize("name", CALL_FORMS)


def asked(given_: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "id": "call00001", "function": {"name": "f", "arguments": given_}}


def written(name: str, calls: list[dict[str, Any]]) -> str:
    return written_by(name, [asked(one) for one in calls])


def representable(name: str, one: dict[str, Any]) -> bool:
    """XML has no escape: what closes a value cannot be in one, and a line end around it is the template's."""
    return name != "xml" or all(bit not in one["code"] for bit in ("</parameter>", "</function>"))


@forms
@given(calls=st.lists(arguments, min_size=1, max_size=3))
def test_calls_are_read_back_as_they_were_asked(name: str, calls: list[dict[str, Any]]) -> None:
    calls = [one for one in calls if representable(name, one)]
    wrote = written(name, calls)
    read = parse_tool_calls(wrote, TurnForm(calls=name), SCHEMAS)
    assert read == tuple(ToolCall(name="f", arguments=one) for one in calls)
    spans = tool_call_spans(wrote, TurnForm(calls=name))
    assert len(spans) == len(calls)
    assert without_tool_calls(wrote, TurnForm(calls=name)).strip() == ""


@forms
@given(calls=st.lists(arguments, min_size=1, max_size=2), cuts=st.lists(st.integers(0, 300), max_size=9))
def test_a_stream_says_what_the_splitter_says(name: str, calls: list[dict[str, Any]], cuts: list[int]) -> None:
    form = TurnForm(calls=name)
    before = "" if FORMS[name].at_start else "I compute. "
    wrote = f"<think>\nno: {written(name, calls[:1])}</think>\n\n{before}{written(name, calls)}"
    at = sorted({cut % (len(wrote) + 1) for cut in cuts})
    pieces = [wrote[a:b] for a, b in zip([0, *at], [*at, len(wrote)], strict=True)]
    spoken, told = StreamParser(form), {"content": "", "reasoning_content": ""}
    spoken.begin_turn("")
    for piece in pieces:
        for kind, more in spoken.add(piece):
            told[kind] += more
    for kind, more in spoken.end_turn():
        told[kind] += more
    turn = Turn(start=0, end=1, text=wrote, stopped=True, form=form)
    assert told["content"] == spoken_text([turn]).strip() == before.strip()
    assert told["reasoning_content"].startswith("no:")


@forms
@given(st.lists(st.sampled_from(pieces) | text, max_size=9).map("".join))
def test_any_text_is_calls_or_says_why(name: str, wrote: str) -> None:
    opens = FORMS[name].opens[0]
    for one in (wrote, opens + wrote, opens + '{"name": "f", ' + wrote, f"{opens}[f({wrote})]"):
        form = TurnForm(calls=name)
        for call in parse_tool_calls(one, form, SCHEMAS):
            assert (call.malformed is None) == (call.name is not None) == (call.arguments is not None)
            json.dumps(call.arguments, allow_nan=False)
        assert all(0 <= a <= b <= len(one) for a, b in tool_call_spans(one, form))
        without_tool_calls(one, form)


@forms
def test_what_is_cut_off_is_never_a_call(name: str) -> None:
    wrote = written(name, [{"code": "print(1)", "count": 3}])
    for end in range(len(wrote) - 1):
        for call in parse_tool_calls(wrote[:end], TurnForm(calls=name), SCHEMAS):
            complete = call.malformed is None
            assert not complete or wrote[end:].strip() in ("]", "[/TOOL_CALLS]"), wrote[:end]


ONE = "<parameter=count>1</parameter>"


@pytest.mark.parametrize(
    ("name", "wrote", "reason"),
    [
        ("xml", "<tool_call><function=f><parameter=a>1</function></tool_call>", "missing </parameter>"),
        ("xml", "<tool_call><function=f><parameter=a>1</parameter>", "missing"),
        ("xml", "<tool_call><function=f></tool_call>", "missing </function></tool_call>"),
        ("xml", "<tool_call>f(1)</tool_call>", "'<function=NAME>' is missing"),
        ("xml", f"<tool_call><function=f>{ONE.replace('1', 'x')}</function></tool_call>", "Expecting value"),
        ("xml", f"<tool_call><function=f>{ONE}{ONE}</function></tool_call>", "written twice"),
        ("llama", '{"name": "f"}', "'parameters' is missing"),
        ("llama", '{"name": "f", "parameters": {}} so', "Extra data"),
        ("llama", '{"name": "f", "parameters": {', "Expecting"),
        ("pythonic", "[f(1)]", "every argument needs its name"),
        ("pythonic", "[f(**x)]", "every argument needs its name"),
        ("pythonic", "[f(x=1, x=2)]", "an argument is written twice"),
        ("pythonic", "[f(x=g())]", "is no value"),
        ("pythonic", "[f(x=1e999)]", "is no value"),
        ("pythonic", "[f(x=1)", "not a list of calls"),
        ("pythonic", "[f(x=" + "[" * 500 + "]" * 500 + ")]", "not a list of calls"),
        ("pythonic", "[f(x=" + "[" * 40 + "]" * 40 + ")]", "nested too deeply"),
        ("pythonic", "[f(x=1)] so", "Extra data"),
        ("lfm", "<|tool_call_start|>[f(x=1)]", "missing <|tool_call_end|>"),
        ("mistral", "[TOOL_CALLS][]", "the list of calls is empty"),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"x": 1', "Expecting"),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"x": 1} so', "Extra data"),
    ],
)
def test_an_undecodable_call_says_why(name: str, wrote: str, reason: str) -> None:
    (found,) = parse_tool_calls(wrote, TurnForm(calls=name), SCHEMAS)
    assert found.malformed is not None and reason in found.malformed


def test_a_forgotten_closing_tag_does_not_swallow_the_next_call() -> None:
    bad = "<tool_call><function=f><parameter=code>1</function></tool_call>"
    good = "<tool_call><function=f><parameter=code>2</parameter></function></tool_call>"
    read = parse_tool_calls(bad + good, TurnForm(calls="xml"), SCHEMAS)
    assert [call.arguments for call in read] == [None, {"code": "2"}]


@pytest.mark.parametrize("name", ["llama", "pythonic"])
def test_a_call_of_the_whole_turn_is_none_behind_text(name: str) -> None:
    wrote = f"So: {written(name, [{'code': '1'}])}"
    assert parse_tool_calls(wrote, TurnForm(calls=name), SCHEMAS) == ()


def test_the_types_of_xml_are_those_of_the_schema() -> None:
    values = {"code": "5", "count": 5, "flag": True, "none": None, "items": [1, "a"], "share": 0.5}
    (read,) = parse_tool_calls(written("xml", [values]), TurnForm(calls="xml"), SCHEMAS)
    assert read.arguments == values and type(read.arguments["flag"]) is bool


# ---- found by rendering ----


@pytest.mark.parametrize("family", FAMILIES)
def test_the_form_of_a_template_is_found_or_refused_by_name(family: str) -> None:
    expected, _ = FAMILIES[family]
    if expected in CALL_FORMS:
        assert chat_of(family).form.calls == expected
        return
    with pytest.raises(ChatError) as refused:
        chat_of(family)
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("before", "form"), [("<|tool_list_start|>", "lfm"), ("[AVAILABLE_TOOLS]", "mistral"), ("", "hermes")]
)
def test_a_template_that_shows_no_call_has_the_form_of_its_tools(before: str, form: str) -> None:
    template = FRAME.strip().replace("CALLS", "").replace("{{- t | tojson }}", before + "{{- t | tojson }}")
    tokenizer = ByteTokenizer(special=CHATML_TOKENS, corpus=(), vocab_size=256)
    assert ChatFormat(tokenizer, template, [TOOL]).form.calls == form


def test_a_text_of_arguments_is_decoded_once() -> None:
    chat = chat_of("hermes")
    for given_ in ({"code": 'a\n"é"'}, json.dumps({"code": 'a\n"é"'})):
        call = {"type": "function", "function": {"name": "f", "arguments": given_}}
        ids, mask = chat.encode_conversation(
            [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        )
        wrote = chat.decode([i for i, m in zip(ids, mask, strict=True) if m])
        (read,) = parse_tool_calls(wrote)
        assert read.arguments == {"code": 'a\n"é"'}


def test_a_row_that_the_parser_reads_otherwise_is_refused() -> None:
    """XML cannot carry its own closing tags."""
    bad = {"code": "</parameter></function></tool_call>"}
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [asked(bad)]}]
    with pytest.raises(ChatError, match=r"assistant message 1: .* read back"):
        chat_of("xml").encode_conversation(messages, [TOOL])
