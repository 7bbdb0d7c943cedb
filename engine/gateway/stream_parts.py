"""The parts of a response, in the order of their creation.

    tokens of a turn -> TextPart (content, thinking) ... ToolCallPart per call -> ToolResultPart per result

A response that is sent whole has the same parts as a streamed one, so both are equal.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Any, Literal, NamedTuple

import msgspec

Kind = Literal["content", "reasoning_content"]


class TextPart(NamedTuple):
    """Text of the policy, content or thinking. `choice` counts from 0."""

    choice: int
    kind: Kind
    text: str


class ToolCallPart(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_use", rename={"choice": "index"}
):
    """A call of the agent, or one for the client to make; as JSON the field `server_tool_event` of a chunk.
    `name` and `arguments` are None if the call could not be decoded."""

    choice: int = 0
    id: str = ""
    name: str | None = None
    arguments: dict[str, Any] | None = None


class ToolResultPart(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="tool_result",
    rename={"choice": "index", "text": "content"},
):
    """The result of the call `id`, with the text for the policy; as JSON like a call."""

    choice: int = 0
    id: str = ""
    name: str | None = None
    status: str = ""
    is_error: bool = False
    text: str = ""


Part = TextPart | ToolCallPart | ToolResultPart


def merge_parts(parts: Iterable[Part]) -> list[Part]:
    """Join neighbouring texts of the same choice and kind."""
    found: list[Part] = []
    for key, run in groupby(parts, lambda part: part[:2] if isinstance(part, TextPart) else None):
        if key is None:
            found += run
        else:
            found.append(TextPart(*key, "".join([part.text for part in run if isinstance(part, TextPart)])))
    return found


def join_texts(parts: Iterable[Part], choice: int) -> dict[Kind, str]:
    """Return the content and the thinking of a choice."""
    found: dict[Kind, list[str]] = {"content": [], "reasoning_content": []}
    for part in parts:
        if isinstance(part, TextPart) and part.choice == choice:
            found[part.kind].append(part.text)
    return {kind: "".join(texts) for kind, texts in found.items()}
