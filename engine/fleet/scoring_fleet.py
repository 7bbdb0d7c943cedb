"""A fleet whose replicas score given ids by log-prob.

    score ──> the replica that is up and scores fewest ──> PromptScores
                └── failed or went down: another one, each once

A score leaves no KV on a replica, so the scheduler ignores it. A score waits for its replica at most as long
as a turn may take.
"""

from __future__ import annotations

import asyncio

from rocstar.engine.fleet.fleet import Fleet
from rocstar.engine.fleet.replicas import Slot
from rocstar.engine.inference.base import Inference, InferenceError, PromptScores, Sampling, ScoresPrompts


class ScoringFleet(Fleet):
    """Implements `ScoresPrompts`, too: every replica does.

    Invariant: a score is one replica's whole answer. It fails by its deadline, by a refusal of its own, when
    it was aborted, or when no replica that is up answers.
    """

    _scoring: dict[str, Inference]

    async def __aenter__(self) -> ScoringFleet:
        self._scoring = {}
        await super().__aenter__()
        return self

    async def score(
        self, ids: list[int], *, sampling: Sampling, request_id: str, deadline: float | None
    ) -> PromptScores:
        """Score `ids` on one replica after the other, until one answers."""
        tried: set[int] = set()
        while others := [slot for slot in self.replicas.slots if slot.up and slot.index not in tried]:
            busy = list(self._scoring.values())
            slot = min(others, key=lambda slot: sum(slot.replica is one for one in busy))
            tried.add(slot.index)
            try:
                return await self._score_on(slot, ids, sampling, request_id, deadline)
            except InferenceError as error:
                if not error.retryable or request_id not in self._scoring:
                    raise
            finally:
                self._scoring.pop(request_id, None)
        raise InferenceError("replicas_failed", f"no replica scored {request_id!r}", retryable=True)

    async def _score_on(
        self, slot: Slot, ids: list[int], sampling: Sampling, request_id: str, deadline: float | None
    ) -> PromptScores:
        replica = slot.replica
        assert isinstance(replica, ScoresPrompts), "a replica of a scoring fleet scores"
        self._scoring[request_id] = replica
        limit = asyncio.get_running_loop().time() + self._limits.turn_timeout_s
        try:
            async with asyncio.timeout_at(limit):
                return await replica.score(ids, sampling=sampling, request_id=request_id, deadline=deadline)
        except TimeoutError:
            if deadline is not None and asyncio.get_running_loop().time() >= deadline:
                raise
            raise InferenceError("replica_hung", f"replica {slot.index}", retryable=True) from None

    async def abort(self, request_id: str) -> None:
        replica = self._scoring.pop(request_id, None)
        if replica is not None:
            await replica.abort(request_id)
        await super().abort(request_id)
