"""The parts of a response, in the order of their creation.

    tokens of a turn -> TextPart (content, thinking) ... ToolCallPart per call -> ToolResultPart per result

A response that is sent whole has the same parts as a streamed one, so both are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Kind = Literal["content", "reasoning_content"]


class TextPart(NamedTuple):
    """Text of the policy, content or thinking. `choice` counts from 0."""

    choice: int
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallPart:
    """A call of the agent, or one for the client to make. `name` and `arguments` are None if the call could
    not be decoded."""

    choice: int
    id: str
    name: str | None
    arguments: Mapping[str, Any] | None

    def event(self) -> dict[str, Any]:
        """Return the field `server_tool_event` of a chunk."""
        return {
            "type": "tool_use",
            "index": self.choice,
            "id": self.id,
            "name": self.name,
            "arguments": None if self.arguments is None else dict(self.arguments),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResultPart:
    """The result of the call `id`: the text for the policy."""

    choice: int
    id: str
    name: str | None
    status: str
    is_error: bool
    text: str

    def event(self) -> dict[str, Any]:
        """Return the field `server_tool_event` of a chunk."""
        return {
            "type": "tool_result",
            "index": self.choice,
            "id": self.id,
            "name": self.name,
            "status": self.status,
            "is_error": self.is_error,
            "content": self.text,
        }


Part = TextPart | ToolCallPart | ToolResultPart


def merge_parts(parts: Iterable[Part]) -> list[Part]:
    """Join neighbouring texts of the same choice and kind."""
    found: list[Part] = []
    texts: list[str] = []
    for part in parts:
        last = found[-1] if found else None
        if isinstance(part, TextPart) and isinstance(last, TextPart) and last[:2] == part[:2]:
            texts.append(part.text)
            continue
        if len(texts) > 1 and isinstance(last, TextPart):
            found[-1] = TextPart(last.choice, last.kind, "".join(texts))
        found.append(part)
        texts = [part.text] if isinstance(part, TextPart) else []
    if len(texts) > 1 and isinstance(found[-1], TextPart):
        found[-1] = TextPart(found[-1].choice, found[-1].kind, "".join(texts))
    return found


def join_texts(parts: Iterable[Part], choice: int) -> dict[Kind, str]:
    """Return the content and the thinking of a choice."""
    found: dict[Kind, list[str]] = {"content": [], "reasoning_content": []}
    for part in parts:
        if isinstance(part, TextPart) and part.choice == choice:
            found[part.kind].append(part.text)
    return {kind: "".join(texts) for kind, texts in found.items()}
