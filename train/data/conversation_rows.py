"""Rows of a source as conversations for a cold start.

row ──conversation_forms.py──> messages, tools ──> does it end with an assistant? ──> do its calls name
tools of the row, and their arguments fit the schemas? ──> does every template show all of it?
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from rocstar.engine.chat.boundaries import ChatError, Rendering
from rocstar.engine.chat.chat import load_template
from rocstar.engine.chat.shown import ShownCheck
from rocstar.engine.tools.tool import check_arguments, check_parameters
from rocstar.train.data.build_config import ConversationsConfig, SourceConfig
from rocstar.train.data.candidate import Candidate, Dropped, clipped, earlier, licence_of, rejection_reason, row_name
from rocstar.train.data.conversation_forms import read_conversation
from rocstar.train.data.words import conversation_key
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.messages import short_repr


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
