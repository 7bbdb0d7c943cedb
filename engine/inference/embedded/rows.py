"""The state of the embedded engine: pending requests, and the rows of its cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rocstar.engine.inference.base import Generation, Heard, InferenceError, StopReason


@dataclass(slots=True, kw_only=True, eq=False)
class DecodeRequest:
    """A `generate` call on its way: tokens so far, and the future that waits for them."""

    row_id: str
    ids: list[int]
    max_new_tokens: int
    stop_ids: frozenset[int]
    temperature: float
    seed: int
    future: asyncio.Future[Generation]
    granted: Callable[[], None] | None = None
    """To be called on the event loop when it has a slot."""
    heard: Heard | None = None
    """To be called on the event loop for each token."""
    parent: str | None = None
    """The row that a branch begins with."""
    new_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[list[int]] = field(default_factory=list)
    cached_tokens: int = 0

    def add(self, token: int, logprob: float, version: int) -> StopReason | None:
        at = len(self.new_ids)
        self.new_ids.append(token)
        self.logprobs.append(logprob)
        if self.spans and self.spans[-1][2] == version:
            self.spans[-1][1] = at + 1
        else:
            self.spans.append([at, at + 1, version])
        if token in self.stop_ids:
            return StopReason.stop
        return StopReason.length if len(self.new_ids) >= self.max_new_tokens else None

    def result(self, finish: StopReason) -> Generation:
        return Generation(
            ids=tuple(self.new_ids),
            logprobs=tuple(self.logprobs),
            version_spans=tuple((a, b, v) for a, b, v in self.spans),
            finish=finish,
            cached_tokens=self.cached_tokens,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """A slot's owner. `cached` of its `ids` are in the KV cache; `request` is set while it decodes.

    `prefix`: its first prompt without the last token, which siblings can copy. The first `learned` of its ids are
    in `followers`, those of its task (drafts.py).
    """

    row_id: str
    slot: int
    ids: list[int]
    prefix: tuple[int, ...]
    cached: int = 0
    request: DecodeRequest | None = None
    followers: dict[int, int] | None = None
    learned: int = 0


Done = list[tuple[DecodeRequest, StopReason]]

News = list[tuple[Heard, int, int, float]]
"""Tokens of one forward for a listener: position, id and log-prob."""


def end_wait(future: asyncio.Future[Any], outcome: object) -> None:
    """End a wait that has not ended; on the event loop. outcome: its result, or an InferenceError."""
    if future.done():
        return
    if isinstance(outcome, InferenceError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def tell(news: News) -> None:
    """On the event loop, once for all rows of a forward: a wake-up of the loop costs more than a token."""
    for heard, place, token, logprob in news:
        heard(place, token, logprob)
