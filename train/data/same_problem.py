"""Equality of rows: their texts are equal but for typesetting. Pure.

Tasks are equal if their questions are; conversations if all their text and calls are. System messages do not
count: a conversation is often published with several.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rocstar.train.data.words import signed_words_of

KEY_BYTES = 16


def question_key(question: str, context: Sequence[Mapping[str, Any]] = ()) -> bytes:
    """Return the key of a task's question; `context`: the messages before the question."""
    return conversation_key([*context, {"role": "user", "content": question}])


def conversation_key(messages: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the key of a conversation's text."""
    said = [_said(message) for message in messages if message["role"] not in ("system", "developer")]
    text = json.dumps(said, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=KEY_BYTES).digest()


def _said(message: Mapping[str, Any]) -> list[Any]:
    calls = [
        [call["function"]["name"], _arguments(call["function"]["arguments"])]
        for call in message.get("tool_calls") or ()
    ]
    return [message["role"], signed_words_of(message.get("content") or ""), calls]


def _arguments(value: Any) -> str:
    """Arguments in one spelling, whether they came as an object or as its JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return str(value)
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
