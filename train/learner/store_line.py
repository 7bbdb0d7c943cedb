"""Rank 0 tells the nodes that only serve: they take part in no collective, so they hear through torchrun's
store.

    rank 0:       tell(what) ── told/n ──> store ──> hear()     every node that only serves
                  replies() <── reply/n/rank ── store <── reply(what)

Who waits: `hear` for rank 0's next word as long as rank 0 lives; `replies` for a reply of each to the last
word, as long as each lives and at most REPLY_S (leader.py). Nothing else would tell rank 0: a torchrun does
not hear of another node's.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from rocstar.train.learner.leader import BEAT_S, SILENT_S, Heart, Leader, Silent, lost
from rocstar.train.recipe.errors import TrainingStopped

REPLY_S = 7200.0
"""For all of what one word asks for: servers that start, or take a version, have shorter deadlines of their
own."""


class ServerLost(TrainingStopped):
    """A node that only serves has not shown life for too long, or replies to nothing."""


class StoreLine:
    """One end of it.

    Invariant: the n-th `hear` of each serving rank is the n-th `tell` of rank 0, and `replies` are those to
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
        self._owner = store  # of the process that has the server: without this one nobody hears any more
        self._store = store.clone()
        self._leader = Leader(store, beat_s=beat_s, silent_s=silent_s, name="serving")
        whose = [rank] if rank else servers
        self._hearts = {
            k: Heart(self._store, f"serving {k}", beat_s=beat_s, silent_s=silent_s, clock=clock)
            for k in whose
        }
        self._rank, self._clock = rank, clock
        self._words = 0
        (self._hearts[rank] if rank else self._leader).begin()

    def stop(self) -> None:
        self._leader.stop()
        for heart in self._hearts.values():
            heart.stop()

    # ---- rank 0 ----

    def tell(self, word: Any) -> None:
        """Every node that only serves hears it next. None is the last word."""
        self._words += 1
        self._store.set(self._told, pickle.dumps(word))
        self._leader.call()

    def replies(self) -> list[Any]:
        """What each replied to the last word, by rank. ServerLost: one does not."""
        until = self._clock() + REPLY_S
        keys = {rank: self._reply_of(rank) for rank in self._hearts}
        for rank, key in keys.items():
            try:
                self._hearts[rank].await_key(key, until=until)
            except Silent as silent:
                raise ServerLost(
                    f"the node of rank {rank}, which only serves, is gone: {silent}; its own output says "
                    "why. Go on with --resume"
                ) from None
        found = [pickle.loads(self._store.get(key)) for key in keys.values()]
        for key in [*keys.values(), self._told]:
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
        return pickle.loads(self._asked("get", self._told))

    def reply(self, reply: Any) -> None:
        """LeaderLost: rank 0 is gone, with the store."""
        self._asked("set", self._reply_of(self._rank), pickle.dumps(reply))

    @property
    def _told(self) -> str:
        return f"words/told/{self._words}"

    def _reply_of(self, rank: int) -> str:
        return f"words/reply/{self._words}/{rank}"

    def _asked(self, what: str, *arguments: Any) -> Any:
        any_dist: Any = dist
        try:
            return getattr(self._store, what)(*arguments)
        except any_dist.DistError as error:
            raise lost(f"the store cannot be reached: {error}") from None
