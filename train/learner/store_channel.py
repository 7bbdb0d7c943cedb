"""Messages of rank 0 to nodes that only serve, through torchrun's store: they take part in no collective.

    rank 0:       tell(what) ── told/n ──> store ──> hear()     every node that only serves
                  replies() <── reply/n/rank ── store <── reply(what)

`hear` waits for rank 0's next message as long as rank 0 lives; `replies` waits for every node's reply to the
last message, as long as each lives and at most REPLY_S (leader.py). torchrun itself does not report the end
of another node's process.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from rocstar.train.learner.leader import BEAT_S, SILENT_S, Heart, Leader, Silent, lost
from rocstar.train.recipe.errors import TrainingStopped

REPLY_S = 7200.0
"""Seconds for all work of one message: starts of servers and new versions have shorter deadlines."""


T = TypeVar("T")
_WORDS: dict[str, type] = {}


def travels(kind: type[T]) -> type[T]:
    """Decorates a dataclass that may be a word or a reply. The store has no password, so that nothing but
    values of such classes, and what JSON has, is read from it."""
    _WORDS[kind.__name__] = kind
    return kind


class ServerLost(TrainingStopped):
    """A node that only serves has not shown life for too long, or replies to nothing."""


class StoreChannel:
    """One end of the channel.

    Invariant: the n-th `hear` of each serving rank returns the n-th `tell` of rank 0, and `replies` belong to
    it.
    """

    def __init__(
        self,
        store: Any,
        *,
        rank: int,
        servers: Sequence[int],
        beat_s: float = BEAT_S,
        silent_s: float = SILENT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`servers`: the ranks that only serve. `rank`: ours; one of them, or 0."""
        self._owner = store  # the process with the store's server: without it no message arrives
        self._store = store.clone()
        self._leader = Leader(store, beat_s=beat_s, silent_s=silent_s, name="serving")
        whose = [rank] if rank else servers
        self._hearts = {
            k: Heart(self._store, f"serving {k}", beat_s=beat_s, silent_s=silent_s, clock=clock) for k in whose
        }
        self._rank, self._clock = rank, clock
        self._words = 0
        (self._hearts[rank] if rank else self._leader.heart).begin()

    def stop(self) -> None:
        self._leader.heart.stop()
        for heart in self._hearts.values():
            heart.stop()

    # ---- rank 0 ----

    def tell(self, word: Any) -> None:
        """Every node that only serves hears it next. None is the last word."""
        self._words += 1
        self._store.set(self._message_key, encoded(word))
        self._leader.call()

    def replies(self) -> list[Any]:
        """Return each reply to the last message, by rank. ServerLost: a rank does not reply."""
        until = self._clock() + REPLY_S
        keys = {rank: self._reply_key(rank) for rank in self._hearts}
        for rank, key in keys.items():
            try:
                self._hearts[rank].await_key(key, until=until)
            except Silent as silent:
                raise ServerLost(
                    f"the node of rank {rank}, which only serves, is gone: {silent}; its own output says "
                    "why. Go on with --resume"
                ) from None
        found = [decoded(self._store.get(key)) for key in keys.values()]
        for key in [*keys.values(), self._message_key]:
            self._store.delete_key(key)
        return found

    def end(self) -> None:
        """The last word. Returns when each has heard it: the store may end with this process."""
        self.tell(None)
        self.replies()

    # ---- a node that only serves ----

    def hear(self) -> Any:
        """Rank 0's next word. LeaderLost: it is gone."""
        self._leader.await_call()
        self._words += 1
        return decoded(self._call_store("get", self._message_key))

    def reply(self, reply: Any) -> None:
        """LeaderLost: rank 0 is gone, with the store."""
        self._call_store("set", self._reply_key(self._rank), encoded(reply))

    @property
    def _message_key(self) -> str:
        return f"words/told/{self._words}"

    def _reply_key(self, rank: int) -> str:
        return f"words/reply/{self._words}/{rank}"

    def _call_store(self, what: str, *arguments: Any) -> Any:
        any_dist: Any = dist
        try:
            return getattr(self._store, what)(*arguments)
        except any_dist.DistError as error:
            raise lost(f"the store cannot be reached: {error}") from None


def encoded(value: Any) -> str:
    """The word as JSON. TypeError for a class that does not travel."""
    return json.dumps(_plain(value))


def decoded(text: bytes) -> Any:
    """Decode a message. TrainingStopped for other bytes: another process writes into the store."""
    try:
        return _value(json.loads(text))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise TrainingStopped(
            f"the store holds a word that no rank of this version wrote: {type(error).__name__}: {error}; "
            "start the same version on every node, and let nobody else reach --master-port"
        ) from None


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Path):
        return {"kind": "Path", "of": str(value)}
    if isinstance(value, list | tuple):
        return {"kind": type(value).__name__, "of": [_plain(item) for item in value]}
    if is_dataclass(value) and _WORDS.get(type(value).__name__) is type(value):
        values = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return {"kind": type(value).__name__, "of": values}
    raise TypeError(f"{type(value).__name__} does not travel through the store")


def _value(plain: Any) -> Any:
    if not isinstance(plain, dict):
        return plain
    kind, of = plain["kind"], plain["of"]
    if kind == "Path":
        return Path(of)
    if kind in ("list", "tuple"):
        items = [_value(item) for item in of]
        return items if kind == "list" else tuple(items)
    return _WORDS[kind](**{name: _value(item) for name, item in of.items()})
