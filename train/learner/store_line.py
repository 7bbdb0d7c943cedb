"""Rank 0 tells the nodes that only serve: they take part in no collective, so they hear through torchrun's
store.

    rank 0:       tell(what) ── told/n ──> store ──> hear()     every node that only serves
                  replies() <── reply/n/rank ── store <── reply(what)

Who waits: `hear` for rank 0's next word as long as rank 0 lives (leader.py); `replies` for a reply of each to
the last word. A process that dies there does not reply, but torchrun then ends them all.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from rocstar.train.learner.leader import BEAT_S, SILENT_S, Leader

REPLY_TIMEOUT = timedelta(hours=2)
"""For all of what one word asks for: servers that start, or take a version, have shorter deadlines of their
own."""


class StoreLine:
    """One end of it.

    Invariant: the n-th `hear` of each serving rank is the n-th `tell` of rank 0, and `replies` are those to
    it.
    """

    def __init__(self, store: Any, *, rank: int, servers: Sequence[int]) -> None:
        """`servers`: the ranks that only serve. `rank`: ours; one of them, or 0."""
        any_dist: Any = dist  # torch has no types for its stores
        self._owner = store  # of the process that has the server: without this one nobody hears any more
        self._store = any_dist.PrefixStore("words", store.clone())
        self._leader = Leader(store, beat_s=BEAT_S, silent_s=SILENT_S, name="serving")
        self._rank, self._servers = rank, list(servers)
        self._words = 0
        if rank == 0:
            self._leader.begin()

    def stop(self) -> None:
        self._leader.stop()

    # ---- rank 0 ----

    def tell(self, word: Any) -> None:
        """Every node that only serves hears it next. None is the last word."""
        self._words += 1
        self._store.set(f"told/{self._words}", pickle.dumps(word))
        self._leader.call()

    def replies(self) -> list[Any]:
        """What each replied to the last word, by rank."""
        keys = [f"reply/{self._words}/{rank}" for rank in self._servers]
        self._store.wait(keys, REPLY_TIMEOUT)
        found = [pickle.loads(self._store.get(key)) for key in keys]
        for key in [*keys, f"told/{self._words}"]:
            self._store.delete_key(key)
        return found

    # ---- a node that only serves ----

    def hear(self) -> Any:
        """Rank 0's next word. LeaderLost: it is gone."""
        self._leader.await_call()
        self._words += 1
        return pickle.loads(self._store.get(f"told/{self._words}"))

    def reply(self, reply: Any) -> None:
        self._store.set(f"reply/{self._words}/{self._rank}", pickle.dumps(reply))
