"""Rank 0 calls the other ranks; they wait for a call as long as rank 0 lives.

    rank 0:  heartbeat thread ── beats ──> torchrun's store <── call n ── before each collective that it leads
    others:  await_call: is call n there? ── no, for a while ──> a beat since? ── no ──> LeaderLost

The other ranks wait between two calls: for a step's rollouts, a filter over all tasks, a cold start, without
a limit while rank 0's process runs. They enter a collective after the call, so that its timeout covers only
the collective.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

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
                self._store.wait([key], timedelta(seconds=self._beat_s))
                return
            except any_dist.DistStoreError:  # not yet
                pass
            except any_dist.DistError as error:
                raise _unreached(error) from None
            try:
                silence_s = pulse.silence_s(self._store.add(f"{self._name}/beat", 0), self._clock())
            except any_dist.DistError as error:
                raise _unreached(error) from None
            if silence_s >= self._silent_s:
                raise Silent(f"it has not shown life for {silence_s:.0f} s")
            if self._clock() >= until:
                raise Silent(f"it lives, and has not answered for {self._clock() - began:.0f} s")


def _unreached(error: Exception) -> Silent:
    return Silent(f"the store cannot be reached: {error}")


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
