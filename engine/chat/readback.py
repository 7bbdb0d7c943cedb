"""The form in which a template writes calls: found by rendering calls and reading them back.

    calls ──template──> text of an assistant's turn ──parser of a form──> the same calls, or another form

A policy learns the form that its prompt shows and that the cold start writes. If the parser read another one,
every call would be malformed without a message.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rocstar.engine.chat.boundaries import Boundaries, ChatError, Rendering
from rocstar.engine.chat.callforms import FORMS, Schemas, schemas_of
from rocstar.engine.chat.toolcalls import parse_tool_calls
from rocstar.engine.types import ToolCall, TurnForm

_NAME = "calculate"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Run code.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string"}, "input": {"type": "string"}},
            "required": ["code"],
        },
    },
}
_USER = {"role": "user", "content": "(user)"}
_CODES = (
    "print(1)",
    "x = \"a\" + 'b'\nprint(f\"{x!r} \\\\ \\n\")\n\nif 1 < 2 & 3:\n\tprint('end')",
    "# \u00e9 \u4e2d \u2028 \U0001f600",
    'print("a</tool_call>b", "</parameter>", "<tool_call>", "]")',
)
_MARKS = tomllib.loads(Path(__file__).with_name("readback.toml").read_text(encoding="utf-8"))


def find_call_form(text: Rendering, tools: Sequence[Mapping[str, Any]], boundaries: Boundaries) -> str | None:
    """The name of the form in which the template writes calls.

    Of a template that shows no call of an assistant, the form of the tags around its tools, or None.

    Raises:
        ChatError: no parser reads the calls back.
    """
    tools = [*tools, _TOOL]
    schemas = schemas_of(tools)
    asked = [[_call({"code": code})] for code in _CODES]
    written = [turn_text(text, _turn(calls), tools, boundaries) for calls in asked]
    if not any(_NAME in one for one in written):
        prompt = text([_USER], tools)
        return next((form for tag, form in _MARKS["around_tools"].items() if tag in prompt), None)
    both = [_call({"code": _CODES[0], "input": "2"}), _call({"code": _CODES[1]})]
    try:
        written.append(turn_text(text, _turn(both), tools, boundaries))
        asked.append(both)
    except ChatError:  # Llama 3.1's own raises an error for two calls in a turn
        pass
    for name in FORMS:
        form = TurnForm(calls=name)
        pairs = zip(written, asked, strict=True)
        if all(difference(one, calls, form, schemas) is None for one, calls in pairs):
            return name
    raise ChatError(_refusal(written, asked, schemas))


def turn_text(
    text: Rendering, turn: Mapping[str, Any], tools: Sequence[Mapping[str, Any]], boundaries: Boundaries
) -> str:
    """Return the template's text of an assistant's turn, without its header and its end.

    Raises:
        ChatError: the turn begins or ends differently from one without calls.
    """
    whole = text([_USER, turn], tools)
    lead = text([_USER], tools, gen=True)
    if not whole.startswith(lead):
        lead = lead.removesuffix(boundaries.opening)
    if not whole.startswith(lead) or not whole.endswith(boundaries.end):
        raise ChatError(
            f"the chat template begins or ends an assistant's turn with tool calls differently: {whole[-200:]!r}"
        )
    return whole[len(lead) : len(whole) - len(boundaries.end)]


def difference(written: str, calls: Sequence[Mapping[str, Any]], form: TurnForm, schemas: Schemas) -> str | None:
    """How the calls that the parser reads differ from those of a message; None if they are the same."""
    read = parse_tool_calls(written, form, schemas)
    want = tuple(ToolCall(name=call["function"]["name"], arguments=call["function"]["arguments"]) for call in calls)
    if read == want:
        return None
    if len(read) != len(want):
        return f"{len(want)} calls are read back as {len(read)}"
    one, other = next((a, b) for a, b in zip(want, read, strict=True) if a != b)
    as_read = other.malformed or f"{other.name}({other.arguments})"
    return f"the call {one.name}({one.arguments})"[:200] + " is read back as " + as_read[:200]


def _refusal(written: Sequence[str], asked: Sequence[Sequence[Mapping[str, Any]]], schemas: Schemas) -> str:
    foreign = next((name for mark, name in _MARKS["foreign"].items() if mark in written[0]), None)
    forms = [TurnForm(calls=name) for name in FORMS]
    reads = [form for form in forms if difference(written[0], asked[0], form, schemas) is None]
    if reads:
        which = next(
            why
            for one, calls in zip(written, asked, strict=True)
            if (why := difference(one, calls, reads[0], schemas))
        )
        what = f"in the form '{reads[0].calls}', but {which}"
    else:
        what = f"in a form that no parser here reads ({foreign or 'unknown'}): {written[0][:200]!r}"
    return (
        f"the chat template writes tool calls {what}\n"
        f"Forms that are read: {', '.join(FORMS)}. Use a bundled template, or a .jinja of one of these forms"
    )


def _turn(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def _call(arguments: Mapping[str, Any]) -> dict[str, Any]:
    # Nine letters and digits: Mistral's templates refuse any other id.
    return {"id": "call00001", "type": "function", "function": {"name": _NAME, "arguments": arguments}}
