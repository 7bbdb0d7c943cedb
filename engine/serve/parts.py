"""What a client sees of a conversation, in the order in which it happens.

    tokens of a turn -> Said (content, thinking) ... ToolUse, one per call -> ToolAnswer, one per result

An answer that is sent at once is made of the same parts as one that is streamed, so the two are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Kind = Literal["content", "reasoning_content"]


class Said(NamedTuple):
    """Text that the policy wrote: what it says, or what it thinks. `choice` counts from 0."""

    choice: int
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """A call that the agent makes, or that a client shall make. `name` and `arguments` are None of one that
    could not be decoded."""

    choice: int
    id: str
    name: str | None
    arguments: Mapping[str, Any] | None

    def event(self) -> dict[str, Any]:
        """As the field `server_tool_event` of a chunk."""
        return {
            "type": "tool_use",
            "index": self.choice,
            "id": self.id,
            "name": self.name,
            "arguments": None if self.arguments is None else dict(self.arguments),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """What the call `id` gave: the text that the policy reads."""

    choice: int
    id: str
    name: str | None
    status: str
    is_error: bool
    text: str

    def event(self) -> dict[str, Any]:
        """As the field `server_tool_event` of a chunk."""
        return {
            "type": "tool_result",
            "index": self.choice,
            "id": self.id,
            "name": self.name,
            "status": self.status,
            "is_error": self.is_error,
            "content": self.text,
        }


Part = Said | ToolUse | ToolAnswer


def merged(parts: Iterable[Part]) -> list[Part]:
    """The same parts, with neighbours of one choice and kind as one text."""
    found: list[Part] = []
    texts: list[str] = []
    for part in parts:
        last = found[-1] if found else None
        if isinstance(part, Said) and isinstance(last, Said) and last[:2] == part[:2]:
            texts.append(part.text)
            continue
        if len(texts) > 1 and isinstance(last, Said):
            found[-1] = Said(last.choice, last.kind, "".join(texts))
        found.append(part)
        texts = [part.text] if isinstance(part, Said) else []
    if len(texts) > 1 and isinstance(found[-1], Said):
        found[-1] = Said(found[-1].choice, found[-1].kind, "".join(texts))
    return found


def texts_of(parts: Iterable[Part], choice: int) -> dict[Kind, str]:
    """All that a choice says, and all that it thinks."""
    found: dict[Kind, list[str]] = {"content": [], "reasoning_content": []}
    for part in parts:
        if isinstance(part, Said) and part.choice == choice:
            found[part.kind].append(part.text)
    return {kind: "".join(texts) for kind, texts in found.items()}
