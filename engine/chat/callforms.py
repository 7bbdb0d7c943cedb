"""The call forms: how a model writes its tool calls, one parser for each.

    hermes     <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>
    xml        <tool_call><function=f><parameter=x>1</parameter></function></tool_call>
    llama      {"name": "f", "parameters": {"x": 1}}                     the whole turn
    pythonic   [f(x=1), g()]                                             the whole turn
    lfm        <|tool_call_start|>[f(x=1), g()]<|tool_call_end|>
    mistral    [TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}], or [TOOL_CALLS]f[ARGS]{"x": 1}

A call that cannot be decoded is a ToolCall with `malformed` set: it is fed back and counted, never executed.
A tag within a string of a call is text. Ambiguous calls are not guessed: a repeated key, or a number that
JSON cannot represent, makes a call malformed. A tag without a call after it is a mention.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rocstar.engine.types import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_DEPTH = 32
"""The deepest nesting of arguments: parsed arguments must fit a record."""

Schemas = Mapping[str, Mapping[str, Any]]
"""Function name -> parameter name -> its JSON schema. A form without types of its own (`xml`) reads by it."""


class WrittenCall(NamedTuple):
    """A call and the characters [start, end) that it takes, if `closed` its closing tag included."""

    start: int
    end: int
    closed: bool
    call: ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """A text form of tool calls.

    Attributes:
        name: the name in TurnForm.calls and in the docs.
        opens: the texts that begin a call.
        at_start: a call begins only at the start of the spoken text.
        read: returns the calls that begin at a position of a text; empty for a mention.
    """

    name: str
    opens: tuple[str, ...]
    read: Callable[[str, int, Schemas], Sequence[WrittenCall]]
    at_start: bool = False


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> Schemas:
    """The parameters of each tool, by name."""
    found: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        function = tool.get("function", tool)
        found[function.get("name", "")] = (function.get("parameters") or {}).get("properties") or {}
    return found


def decoded_arguments(arguments: object) -> object:
    """Arguments that came as JSON text, as the object that it is; anything else as it came."""
    if not isinstance(arguments, str):
        return arguments
    value, end, _ = _json_at(arguments)
    return value if isinstance(value, dict) and not arguments[end:].strip() else arguments


# ---------------------------------------------------------------- hermes


def _read_hermes(text: str, start: int, schemas: Schemas) -> Sequence[WrittenCall]:
    inside = start + len(OPEN)
    value, end, problem = _json_at(text, inside)
    close = text.find(CLOSE, end)
    if close < 0 or text.find(OPEN, end, close) >= 0:
        if not text[inside:].lstrip().startswith("{"):
            return ()
        return (WrittenCall(start=start, end=end, closed=False, call=malformed(f"missing {CLOSE}")),)
    if problem is None and (extra := text[end:close].strip()):
        problem = f"Extra data behind the call: {extra[:20]!r}"
    call = _call_of(value) if problem is None else malformed(problem)
    return (WrittenCall(start=start, end=close + len(CLOSE), closed=True, call=call),)


# ---------------------------------------------------------------- xml

_FUNCTION: Final = re.compile(r"\s*<function=([^<>\n]+)>")
_PARAMETER: Final = re.compile(r"\s*<parameter=([^<>\n]+)>")
_VALUE_END: Final = "</parameter>"
_BEHIND_VALUE: Final = re.compile(r"\s*(?:<parameter=|</function>)")
_CALL_END: Final = re.compile(r"\s*</function>\s*</tool_call>")


def _read_xml(text: str, start: int, schemas: Schemas) -> Sequence[WrittenCall]:
    inside = start + len(OPEN)
    function = _FUNCTION.match(text, inside)
    if function is not None:
        name, at = function[1].strip(), function.end()
        read = _parameters(text, at, schemas.get(name, {}))
        if not isinstance(read, str):
            arguments, end = read
            return (WrittenCall(start=start, end=end, closed=True, call=ToolCall(name=name, arguments=arguments)),)
    close, next_tag = text.find(CLOSE, inside), text.find(OPEN, inside)
    closed = close >= 0 and (next_tag < 0 or close < next_tag)
    if function is None and not closed:
        return ()
    reason = "'<function=NAME>' is missing" if function is None else read
    end = close + len(CLOSE) if closed else inside
    return (WrittenCall(start=start, end=end, closed=closed, call=malformed(str(reason))),)


def _parameters(text: str, at: int, types: Mapping[str, Any]) -> tuple[dict[str, Any], int] | str:
    """The parameters that begin at `at` and where their call ends, or why there are none."""
    found: dict[str, Any] = {}
    while (parameter := _PARAMETER.match(text, at)) is not None:
        name, begin = parameter[1].strip(), parameter.end()
        end = text.find(_VALUE_END, begin)
        while end >= 0 and _BEHIND_VALUE.match(text, end + len(_VALUE_END)) is None:
            end = text.find(_VALUE_END, end + 1)  # a closing tag within the value
        # A forgotten closing tag must not make the next call a part of the value.
        if end < 0 or _CALL_END.search(text, begin, end) is not None:
            return f"missing {_VALUE_END}"
        if name in found:
            return f"the parameter {name[:40]!r} is written twice"
        value = text[begin:end].removeprefix("\n")
        try:
            found[name] = _typed(value.removesuffix("\n"), types.get(name))
        except ValueError as error:
            return str(error)
        at = end + len(_VALUE_END)
    closed = _CALL_END.match(text, at)
    if closed is None:
        return f"missing </function>{CLOSE}"
    return "nested too deeply" if _is_deep(found) else (found, closed.end())


_WORDS: Final = {"True": True, "False": False, "None": None}
"""As Jinja's `string` filter writes JSON's words."""


def _typed(value: str, schema: object) -> object:
    """A value by its parameter's schema: a text, unless the schema names other types alone."""
    named = schema.get("type", "string") if isinstance(schema, Mapping) else "string"
    types = {named} if isinstance(named, str) else set(named)
    if "null" in types and value in ("null", "None"):
        return None
    if "string" in types:
        return value
    if value in _WORDS:
        return _WORDS[value]
    decoded, end, problem = _json_at(value)
    if problem is not None:
        raise ValueError(problem)
    if value[end:].strip():
        raise ValueError(f"Extra data behind the value: {value[end:].strip()[:20]!r}")
    return decoded


# ---------------------------------------------------------------- llama


_LLAMA: Final = re.compile(r'(?:<\|python_tag\|>)?\s*(?=\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:)')


def _read_llama(text: str, start: int, schemas: Schemas) -> Sequence[WrittenCall]:
    """Objects {"name", "parameters"}, a semicolon between two of them."""
    found: list[WrittenCall] = []
    at: int | None = start
    while at is not None and (begin := _LLAMA.match(text, at)) is not None:
        value, end, problem = _json_at(text, begin.end())
        call = _call_of(value, "parameters") if problem is None else malformed(problem)
        end = end if problem is None else len(text)
        semicolon = _SEMICOLON.match(text, end)
        end = end if semicolon is None else semicolon.end()
        found.append(WrittenCall(start=at, end=end, closed=True, call=call))
        at = None if semicolon is None else end
    return _nothing_behind(found, text, len(text))


_SEMICOLON: Final = re.compile(r"\s*;\s*")


def _nothing_behind(found: list[WrittenCall], text: str, end: int) -> list[WrittenCall]:
    """Return the calls; the last one is malformed, with the text up to `end`, if there is such text."""
    if found and (extra := text[found[-1].end : end].strip()):
        call = malformed(f"Extra data behind the call: {extra[:20]!r}")
        found[-1] = found[-1]._replace(end=end, call=call)
    return found


# ---------------------------------------------------------------- pythonic and lfm

_LFM_OPEN, _LFM_CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_LIST_OF_CALLS: Final = re.compile(r"\s*\[\s*[A-Za-z_][\w.]*\s*\(")
_TOKEN: Final = re.compile(
    r"""[^\[\](){}"'\\]+ | "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | ([\[({]) | ([\])}])""", re.VERBOSE | re.DOTALL
)


def _read_pythonic(text: str, start: int, schemas: Schemas) -> Sequence[WrittenCall]:
    if _LIST_OF_CALLS.match(text, start) is None:
        return ()
    return _nothing_behind(_python_calls(text, start, start), text, len(text))


def _read_lfm(text: str, start: int, schemas: Schemas) -> Sequence[WrittenCall]:
    inside = start + len(_LFM_OPEN)
    if _LIST_OF_CALLS.match(text, inside) is None:
        return ()
    found = _python_calls(text, start, inside)
    close = text.find(_LFM_CLOSE, found[-1].end)
    if close < 0:
        call = malformed(f"missing {_LFM_CLOSE}")
        return (WrittenCall(start=start, end=found[-1].end, closed=False, call=call),)
    found = _nothing_behind(found, text, close)
    found[-1] = found[-1]._replace(end=close + len(_LFM_CLOSE))
    return found


def _python_calls(text: str, start: int, bracket: int) -> list[WrittenCall]:
    """The calls of the list whose bracket is the first character from `bracket` on that is no space."""
    bracket = text.index("[", bracket)
    end = _bracket_end(text, bracket)
    try:
        body = ast.parse(text[bracket:end], mode="eval").body
        items = body.elts if isinstance(body, ast.List) else []
        calls = [_python_call(item) for item in items]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        calls = [malformed(f"not a list of calls: {str(error)[:80]}")]
    return _listed(calls, start, end)


def _listed(calls: Sequence[ToolCall], start: int, end: int) -> list[WrittenCall]:
    """Return the calls of one list, each with an equal share of its characters: there is no text between
    them."""
    calls = calls or [malformed("the list of calls is empty")]
    edges = [start + (end - start) * k // len(calls) for k in range(len(calls) + 1)]
    return [WrittenCall(start=edges[k], end=edges[k + 1], closed=True, call=call) for k, call in enumerate(calls)]


def _bracket_end(text: str, at: int) -> int:
    """Where the bracket at `at` is closed, strings aside; the end of the text if nowhere."""
    depth = 0
    while at < len(text) and (token := _TOKEN.match(text, at)) is not None:
        depth += bool(token[1]) - bool(token[2])
        at = token.end()
        if depth == 0:
            return at
    return len(text)


def _python_call(item: ast.expr) -> ToolCall:
    if not isinstance(item, ast.Call):
        return malformed("the list holds something that is no call")
    if item.args or any(keyword.arg is None for keyword in item.keywords):
        return malformed("every argument needs its name: f(x=1)")
    names = [str(keyword.arg) for keyword in item.keywords]
    if len(set(names)) < len(names):
        return malformed("an argument is written twice")
    arguments = {str(keyword.arg): _python_value(keyword.value) for keyword in item.keywords}
    name = ast.unparse(item.func)
    return malformed("nested too deeply") if _is_deep(arguments) else ToolCall(name=name, arguments=arguments)


_JSON_WORDS: Final = {"true": True, "false": False, "null": None}


def _python_value(node: ast.expr) -> Any:
    """A literal of Python, or of JSON. ValueError for anything else."""
    match node:
        case ast.Constant(value=str() | bool() | int() | None as value):
            return value
        case ast.Constant(value=float() as value) if math.isfinite(value):
            return value
        case ast.Name(id=word) if word in _JSON_WORDS:
            return _JSON_WORDS[word]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_python_value(one) for one in items]
        case ast.Dict(keys=keys, values=values):
            pairs = [(_key(key), _python_value(value)) for key, value in zip(keys, values, strict=True)]
            return _object(pairs)
    raise ValueError(f"{ast.unparse(node)[:40]!r} is no value")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("a key of an object is not a string")


# ---------------------------------------------------------------- mistral

_MISTRAL_OPEN: Final = "[TOOL_CALLS]"
_NAMED: Final = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w*\s*)?(?:\[ARGS\])?\s*(?=\{)")


def _read_mistral(text: str, start: int, schemas: Schemas) -> Sequence[WrittenCall]:
    inside = start + len(_MISTRAL_OPEN)
    next_tag = text.find(_MISTRAL_OPEN, inside)
    named = _NAMED.match(text, inside)
    if named is None and not text[inside:].lstrip().startswith("["):
        return ()
    begin = inside if named is None else named.end()
    value, end, problem = _json_at(text, begin)
    if problem is not None:
        end = len(text) if next_tag < 0 else next_tag
        return (WrittenCall(start=start, end=end, closed=True, call=malformed(problem)),)
    if named is not None:
        calls = [_call_of({"name": named[1], "arguments": value})]
    else:
        calls = [_call_of(one) for one in value]
    found = _listed(calls, start, end)
    following = text.find(_MISTRAL_OPEN, end)
    return _nothing_behind(found, text, len(text) if following < 0 else following)


# ---------------------------------------------------------------- values


def _json_at(text: str, at: int = 0) -> tuple[Any, int, str | None]:
    """The JSON value that begins at `at`, where it ends, and why there is none; then the end is `at`."""
    begins = at
    while text[begins : begins + 1].isspace():
        begins += 1
    try:
        value, end = _JSON.raw_decode(text, begins)
    except ValueError as error:  # not JSON, or an integer of more digits than Python converts
        return (None, at, str(error)) if at == 0 else (None, at, _json_at(text[at:])[2])
    except RecursionError:
        return None, at, "nested too deeply"
    return value, end, None


def _call_of(value: Any, arguments_key: str = "arguments") -> ToolCall:
    if not isinstance(value, dict):
        return malformed("the call is not a JSON object")
    for key in ("name", arguments_key):
        if key not in value:
            return malformed(f"'{key}' is missing")
    name, arguments = value["name"], value[arguments_key]
    if not isinstance(name, str):
        return malformed("'name' is not a string")
    if not isinstance(arguments, dict):
        return malformed(f"'{arguments_key}' is not an object")
    if _is_deep(arguments):
        return malformed("nested too deeply")
    return ToolCall(name=name, arguments=arguments)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key is written twice in one object")
    return made


def _number(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:20]} is not a number of JSON")
    return value


def _is_deep(arguments: dict[str, Any]) -> bool:
    level: list[Any] = [arguments]
    for _ in range(MAX_DEPTH):
        inner = [v for x in level for v in (x.values() if isinstance(x, dict) else x)]
        level = [v for v in inner if isinstance(v, dict | list)]
        if not level:
            return False
    return True


def malformed(reason: str) -> ToolCall:
    """A call that cannot be decoded."""
    return ToolCall(name=None, arguments=None, malformed=reason)


_JSON = json.JSONDecoder(object_pairs_hook=_object, parse_float=_number, parse_constant=_number)

FORMS: Final[Mapping[str, CallForm]] = {
    form.name: form
    for form in (
        CallForm(name="hermes", opens=(OPEN,), read=_read_hermes),
        CallForm(name="xml", opens=(OPEN,), read=_read_xml),
        CallForm(name="llama", opens=("<|python_tag|>", "{"), read=_read_llama, at_start=True),
        CallForm(name="pythonic", opens=("[",), read=_read_pythonic, at_start=True),
        CallForm(name="lfm", opens=(_LFM_OPEN,), read=_read_lfm),
        CallForm(name="mistral", opens=(_MISTRAL_OPEN,), read=_read_mistral),
    )
}
