"""Messages of rank 0 to nodes that only serve, through torchrun's store: they take part in no collective.

    rank 0:       tell(what) ── told/n ──> store ──> hear()     every node that only serves
                  replies() <── reply/n/rank ── store <── reply(what)

`hear` waits for rank 0's next message as long as rank 0 lives; `replies` waits for every node's reply to the
last message, as long as each lives and at most REPLY_S. torchrun itself does not report the end
of another node's process.
"""

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from rocstar.train.recipe.errors import TrainingStopped

BEAT_S = 5.0
SILENT_S = 180.0
"""Without a beat for so long rank 0 is gone. A beat may be late: a call into C may hold up all threads."""


class LeaderLost(TrainingStopped):
    """Rank 0 has not shown life for too long."""


@dataclass(slots=True)
class Pulse:
    """Detects that the beats of a process have stopped; time is passed in.

    Invariant: it is silent for `silent_s` or more if and only if the last change of `beat` was as long ago.
    """

    since: float
    beat: int = -1

    def silence_s(self, beat: int, now: float) -> float:
        """How long the count has stood at `beat`, which is read now."""
        if beat != self.beat:
            self.beat, self.since = beat, now
        return now - self.since


class Silent(Exception):
    """The awaited key will not come; the message has the reason."""


class Heart:
    """The beats of one process, over a separate connection.

    Invariant: `await_key` returns when the key exists, or raises because there was no beat for `silent_s`,
    the store is gone, or the time is over, and for no other reason.

    Args:
        store: used only by the waiting thread.
        name: the process of the beats.
    """

    def __init__(
        self, store: Any, name: str, *, beat_s: float, silent_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._name = store, name
        self._beat_s, self._silent_s, self._clock = beat_s, silent_s, clock
        self._stopped = threading.Event()

    # ---- who lives ----

    def begin(self) -> None:
        """Beat from now on until `stop`."""
        own = self._store.clone()
        threading.Thread(target=self._beat, args=[own], name="heartbeat", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _beat(self, store: Any) -> None:
        any_dist: Any = dist  # torch has no types for its stores
        try:
            store.add(f"{self._name}/beat", 1)
            while not self._stopped.wait(self._beat_s):
                store.add(f"{self._name}/beat", 1)
        except any_dist.DistError:  # torchrun has ended, and this process is about to
            return

    # ---- waiting for it ----

    def await_key(self, key: str, *, until: float = math.inf) -> None:
        """Wait until the store has `key`. Silent: it will not come, or has not by `until` on the clock."""
        any_dist: Any = dist
        pulse = Pulse(began := self._clock())
        while True:
            try:
                with contextlib.suppress(any_dist.DistStoreError):  # not yet
                    self._store.wait([key], timedelta(seconds=self._beat_s))
                    return
                silence_s = pulse.silence_s(self._store.add(f"{self._name}/beat", 0), self._clock())
            except any_dist.DistError as error:
                raise Silent(f"the store cannot be reached: {error}") from None
            if silence_s >= self._silent_s:
                raise Silent(f"it has not shown life for {silence_s:.0f} s")
            if self._clock() >= until:
                raise Silent(f"it lives, and has not answered for {self._clock() - began:.0f} s")


class Leader:
    """The calls of rank 0, over a separate connection to the store.

    Invariant: the n-th `await_call` of a rank returns after the n-th `call`, or raises because rank 0 has not
    beaten for `silent_s`, and for no other reason.
    """

    def __init__(self, store: Any, *, beat_s: float, silent_s: float, name: str = "leader") -> None:
        """`name`: the kind of call; other kinds are separate."""
        self._store, self._name = store.clone(), name
        self.heart = Heart(self._store, name, beat_s=beat_s, silent_s=silent_s)
        """The beats of rank 0, which begins and stops them."""
        self._calls = 0

    # ---- rank 0 ----

    def call(self) -> None:
        """The others may go on to the collective that follows."""
        self._calls += 1
        self._store.set(self._call, "")

    @property
    def _call(self) -> str:
        return f"{self._name}/call/{self._calls}"

    # ---- the others ----

    def await_call(self) -> None:
        """Wait for rank 0's next call. LeaderLost: it is gone, or its store is."""
        self._calls += 1
        try:
            self.heart.await_key(self._call)
        except Silent as silent:
            raise lost(str(silent)) from None


def lost(why: str) -> LeaderLost:
    return LeaderLost(f"rank 0 is gone: {why}; its own output says why. Go on with --resume")


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
