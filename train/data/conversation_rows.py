"""Rows of a source as conversations for a cold start.

row ──read_conversation──> messages, tools ──> does it end with an assistant? ──> do its calls name
tools of the row, and their arguments fit the schemas? ──> does every template show all of it?
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from rocstar.engine.chat.boundaries import ChatError, Rendering
from rocstar.engine.chat.chat import load_template
from rocstar.engine.chat.shown import ShownCheck
from rocstar.engine.tools.tool import check_arguments, check_parameters
from rocstar.train.data.build_config import ConversationsConfig, SourceConfig
from rocstar.train.data.row_table import Candidate, Dropped, clipped, earlier, licence_of, rejection_reason, row_name
from rocstar.train.data.words import conversation_key
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.messages import read_messages, short_repr

Form = Literal["messages", "sharegpt", "instruction"]
_THOUGHTS: Final = ("reasoning", "reasoning_content", "thinking")
_TABLES: Final = tomllib.loads(Path(__file__).with_name("conversation_forms.toml").read_text(encoding="utf-8"))
_FROM, _TYPES = (
    {name: meant for meant, names in _TABLES[table].items() for name in names.split()} for table in ("from", "types")
)
_ASKED: Final = ("instruction", "prompt", "problem")
_ANSWERED: Final = ("output", "response", "solution")
_PYTHON_TYPE = re.compile(r"(?P<name>\w+)(?:\[.*\])?(?:,? ?optional)?", re.IGNORECASE)


def read_conversation(row: Mapping[str, Any], form: Form, *, drop_reasoning: bool) -> dict[str, Any]:
    """Return the {"messages", "tools"} of a row. ConfigError if it has another form."""
    messages: Any
    if form == "messages":
        messages = row.get("messages")
    elif form == "sharegpt":
        messages = _from_sharegpt(row)
    else:
        messages = _from_instruction(row)
    if isinstance(messages, list):
        messages = [_thinking(message, drop=drop_reasoning) for message in messages]
    return {"messages": _named_calls(read_messages(messages, "the row")), "tools": read_tools(row.get("tools"))}


def read_tools(value: Any) -> list[dict[str, Any]]:
    """Return tools in the form of chat templates, with parameters as JSON Schema; [] if there are none."""
    if isinstance(value, str):
        try:
            value = json.loads(value or "[]")
        except ValueError as error:
            raise ConfigError(f"tools is no JSON: {error}") from None
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"tools is {short_repr(value)}; it must be a list")
    tools = []
    for tool in value:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ConfigError(f"{short_repr(tool)} is no tool: it has no name")
        parameters = _schema(function.get("parameters") or {"type": "object", "properties": {}})
        if isinstance(parameters, dict):
            parameters.setdefault("type", "object")
        about = {"name": function["name"], "description": str(function.get("description") or "")}
        tools.append({"type": "function", "function": {**about, "parameters": parameters}})
    return tools


def _schema(value: Any, *, names: bool = False) -> Any:
    """Return a schema with JSON's types; `names`: the keys are names of parameters, one may be `type`."""
    if isinstance(value, Mapping):
        schema = {
            str(key): _schema(item, names=key == "properties" and not names)
            for key, item in value.items()
            if item is not None or key in ("default", "const")
        }
        if not names and isinstance(schema.get("type"), str):
            found = _PYTHON_TYPE.fullmatch(schema["type"].strip())
            bare = found["name"] if found else schema["type"]
            schema["type"] = _TYPES.get(bare, bare)
        if not names and isinstance(schema.get("required"), bool):
            del schema["required"]  # of a single parameter: JSON Schema lists them one level above
        return schema
    if isinstance(value, list):
        return [_schema(item) for item in value]
    return value


def _thinking(message: Any, *, drop: bool) -> Any:
    """Return a message with its thought under the name that templates use, or without it."""
    if not isinstance(message, Mapping):
        return message
    rest = {key: item for key, item in message.items() if key not in _THOUGHTS}
    thought = next((message[key] for key in _THOUGHTS if message.get(key)), None)
    return rest if drop or thought is None else {**rest, "reasoning_content": thought}


def _from_instruction(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    asked, answered = (
        next((row[name] for name in names if isinstance(row.get(name), str)), None) for names in (_ASKED, _ANSWERED)
    )
    if asked is None or answered is None:
        what, names = ("instruction", _ASKED) if asked is None else ("response", _ANSWERED)
        raise ConfigError(f"the row has no {what}: none of {', '.join(names)}; it has {', '.join(list(row)[:12])}")
    more = row.get("input")
    system = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    question = f"{asked}\n\n{more}" if isinstance(more, str) and more.strip() else asked
    return [*system, {"role": "user", "content": question}, {"role": "assistant", "content": answered}]


def _from_sharegpt(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    said = row.get("conversations")
    if not isinstance(said, list):
        raise ConfigError(f"the row has no 'conversations'; it has {', '.join(list(row)[:12])}")
    messages: list[dict[str, Any]] = []
    if isinstance(row.get("system"), str) and row["system"].strip():
        messages.append({"role": "system", "content": row["system"]})
    for item in said:
        who = _FROM.get(str(item.get("from"))) if isinstance(item, Mapping) else None
        if who is None or not isinstance(item.get("value"), str):
            raise ConfigError(f"{short_repr(item)} is no turn of a conversation; 'from' is one of {', '.join(_FROM)}")
        if who != "call":
            messages.append({"role": who, "content": item["value"]})
            continue
        calls = _sharegpt_calls(item["value"])
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        messages[-1].setdefault("tool_calls", []).extend(calls)
    return messages


def _sharegpt_calls(value: str) -> list[dict[str, Any]]:
    try:
        calls = json.loads(value)
    except ValueError as error:
        raise ConfigError(f"a function_call is no JSON ({error}): {short_repr(value)}") from None
    calls = calls if isinstance(calls, list) else [calls]
    for call in calls:
        if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
            raise ConfigError(f"a function_call has no name: {short_repr(call)}")
    return [
        {"type": "function", "function": {"name": call["name"], "arguments": call.get("arguments", {})}}
        for call in calls
    ]


def _named_calls(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with an id in every call and result. Results without one get those of the calls in
    order."""
    waiting: list[str] = []
    named = []
    for number, message in enumerate(messages):
        if calls := message.get("tool_calls"):
            calls = [{"id": f"call_{number}_{k}", **call} for k, call in enumerate(calls)]
            message = {**message, "tool_calls": calls}
            waiting = [call["id"] for call in calls]
        elif message["role"] == "tool":
            answered = message.get("tool_call_id") or (waiting[0] if waiting else "")
            if answered in waiting:
                waiting.remove(answered)
            if answered:
                message = {**message, "tool_call_id": answered}
        named.append(message)
    return named


class ConversationReader:
    """Reads the conversations of one source."""

    def __init__(self, source: SourceConfig, config: ConversationsConfig, *, commercial: bool = False) -> None:
        self._source, self._config, self._commercial = source, config, commercial
        self._shown = {name: ShownCheck(Rendering(load_template(name, None)), []) for name in config.templates}

    def read(self, row: Any) -> Candidate | Dropped:
        """Return a conversation, or the reason to drop the row."""
        name = row_name(row)
        try:
            if not isinstance(row, Mapping):
                raise ConfigError(f"no object: {short_repr(row)}")
            said = read_conversation(row, self._source.format, drop_reasoning=self._config.drop_reasoning)
        except ConfigError as error:
            return Dropped(row=name, reason="unreadable", evidence={"error": clipped(str(error))})
        messages, tools = said["messages"], said["tools"]
        asked = next((m["content"] for m in reversed(messages) if m["role"] == "user"), "")
        reason = (
            rejection_reason(row, self._source, commercial=self._commercial)
            or _unfinished(messages)
            or (_bad_call(messages, tools) if self._config.calls else None)
            or self._not_shown(messages, tools)
        )
        if reason:
            return Dropped(row=name, reason=reason[0], evidence=reason[1], shown=clipped(asked))
        body: dict[str, Any] = {"messages": messages, **({"tools": tools} if tools else {})}
        text = json.dumps(body, sort_keys=True).encode("utf-8", "surrogatepass")
        return Candidate(
            row=name,
            id=hashlib.sha256(text).hexdigest()[:16],
            key=conversation_key(messages),
            label="",
            problem=asked,
            body=body,
            licence=licence_of(row, self._source),
            decisions=earlier(row),
        )

    def _not_shown(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, dict[str, Any]] | None:
        for name, check in self._shown.items():
            try:
                check.check_finished(messages, tools)
            except ChatError as error:
                return "not_shown", {"template": name, "error": clipped(str(error))}
        return None


def _unfinished(messages: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any]] | None:
    """A conversation must end with text or a call of the assistant, and answer a user."""
    last = messages[-1]
    if last["role"] != "assistant":
        return "unfinished", {"ends_with": last["role"]}
    if not last["content"].strip() and not last.get("tool_calls"):
        return "unfinished", {"ends_with": "an assistant that says nothing"}
    if not any(message["role"] == "user" for message in messages):
        return "unfinished", {"asks": "nobody"}
    return None


def _bad_call(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> tuple[str, dict[str, Any]] | None:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    for name, parameters in schemas.items():
        if problem := _schema_problem(json.dumps(parameters, sort_keys=True)):
            return "bad_call", {"tool": name, "error": clipped(problem)}
    waiting = 0
    for message in messages:
        if message["role"] == "tool":
            waiting -= 1
            if waiting < 0:
                return "bad_call", {"error": "a result answers no call", "result": clipped(message["content"])}
        elif message["role"] == "assistant":
            waiting = len(message.get("tool_calls") or ())
        for call in message.get("tool_calls") or ():
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            if name in schemas:
                problem = check_arguments(arguments, schemas[name])
            else:
                known = ", ".join(map(repr, schemas)) or "none"
                problem = f"no tool of the row has this name; it has {known}"
            if problem:
                return "bad_call", {"tool": name, "error": clipped(problem)}
    return None


@lru_cache(maxsize=4096)
def _schema_problem(parameters: str) -> str | None:
    """Return the error of a schema given as JSON, cached because data sets repeat their tools."""
    return check_parameters(json.loads(parameters))
