"""A choice of /v1/completions that comes in pieces, put together to what it is when it comes at once.

piece, piece, ... ──> StreamedChoice.add ──> tells the ids that are new: of the piece, or of whole words
                                     choice ──> the answer, which is checked as any other
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rocstar.engine.inference.base import Heard, InferenceError

BETWEEN_WORDS = re.compile(r"(?<=\S)(?= \w)")
"""Before the blank of a word that has begun: no later text changes the tokens before it."""
STEP = 64
"""A text is encoded anew when it has grown by this part of it: in all it costs so many times one encoding."""


class Codec(Protocol):
    """What a text-only endpoint needs of a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...


class WordIds:
    """Ids of a text that grows, in whole words.

    Invariant: `all_of` begins with the ids that `grow` gave. It is what the codec makes of the whole text,
    but for a tokenizer that joins what a blank divides.
    """

    def __init__(self, codec: Codec) -> None:
        self.ids: list[int] = []
        self._codec, self._upto = codec, 0
        """`ids` are those of so many characters."""

    def grow(self, text: str) -> list[int]:
        """The ids that are new, now that `text` is all there is."""
        ends = [found.start() for found in BETWEEN_WORDS.finditer(text, self._upto)]
        if not ends or ends[-1] - self._upto <= self._upto // STEP:
            return []
        ids, before = self._codec.encode(text[: ends[-1]]), len(self.ids)
        if ids[:before] != self.ids:
            return []
        self.ids, self._upto = ids, ends[-1]
        return ids[before:]

    def all_of(self, text: str) -> list[int]:
        """The ids of the whole text, which has ended."""
        ids = self._codec.encode(text)
        if ids[: len(self.ids)] == self.ids:
            return ids
        return self.ids + self._codec.encode(text[self._upto :])


class StreamedChoice:
    """Invariants: `choice` is the one that the same request has when it is not streamed, up to where it broke
    off; what was told are its first ids, each once and in order.

    Args:
        heard: told of every id as it comes.
        most: places that may be told: what comes behind is left to who reads the answer.
        words: of an endpoint that gives text alone: makes ids of it.
    """

    def __init__(self, heard: Heard, *, most: int, words: WordIds | None) -> None:
        self._heard, self._most, self._words = heard, most, words
        self._texts: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[Any] | None = []
        """None where a piece brought none."""
        self._finish: str | None = None
        self._told = 0

    def add(self, event: Any) -> None:
        """Take a piece, and tell what is new. InferenceError(bad_reply) for what is no piece of a choice."""
        try:
            if event["choices"]:  # the last event of some servers has usage alone
                self._tell(self._new_ids(event["choices"][0]))
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            detail = f"{type(error).__name__}: {error}; {str(event)[:300]}"
            raise InferenceError("bad_reply", detail, retryable=True) from error

    def _new_ids(self, piece: Mapping[str, Any]) -> list[int]:
        self._finish = piece.get("finish_reason") or self._finish
        self._texts.append(piece.get("text") or "")
        if self._words is not None:
            return self._words.grow("".join(self._texts))
        ids = list(piece.get("token_ids") or [])
        scored = (piece.get("logprobs") or {}).get("token_logprobs")
        if ids and scored is None:
            self._logprobs = None
        elif self._logprobs is not None:
            self._logprobs += scored or []
        self._ids += ids
        return ids

    def _tell(self, ids: Sequence[int]) -> None:
        for token in ids[: max(0, self._most - self._told)]:
            self._heard(self._told, token)
            self._told += 1

    def choice(self) -> dict[str, Any]:
        """The choice so far, in the form of an answer at once."""
        said: dict[str, Any] = {"text": "".join(self._texts), "finish_reason": self._finish}
        if self._words is None:
            logprobs = None if self._logprobs is None else {"token_logprobs": self._logprobs}
            said |= {"token_ids": self._ids, "logprobs": logprobs}
        return said

    def encode(self, text: str) -> list[int]:
        """Ids of the whole text, those first that were told."""
        assert self._words is not None, "ids need no encoding"
        return self._words.all_of(text)
