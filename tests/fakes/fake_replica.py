"""Replicas without a model, for tests and benchmarks of the fleet: they keep KV books and fail on demand.

    scripts = Scripts(lambda request_id: [[5, 6, 2], [7, 2]])       # the turns of a trajectory, as token ids
    replica = FakeReplica(scripts, kv_tokens=10_000, token_s=0.01)
    replica.kill()                                                   # or hang(), or fail_next(3)

A replica's output depends only on the trajectory and its prefix, as with real noise by (seed, position): a
turn that continues on another replica gives the same tokens.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rocstar.engine.inference.base import Generation, Inference, InferenceError, KvLoad, Sampling, StopReason
from tests.fakes.scripted_policy import logprob_of

LOGPROBS = tuple(logprob_of(token) for token in range(1 << 16))
"""Costs by token: a fake's own cost must not hide the engine's."""


@dataclass(slots=True)
class Scripts:
    """The scripted turns of every trajectory; shared by the replicas of a fleet."""

    turns_of: Callable[[str], Sequence[Sequence[int]]]
    _turn: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The present turn of a trajectory and the context that it began with."""

    def rest_of_turn(self, request_id: str, ids: list[int]) -> list[int]:
        """Return the tokens after `ids`: the rest of the present turn, or the complete next one."""
        turns = self.turns_of(request_id)
        number, start = self._turn.get(request_id, (-1, 0))
        if number >= 0 and (written := len(ids) - start) < len(turns[number]):
            turn = list(turns[number])
            if ids[start:] == turn[:written]:
                return turn[written:]
        self._turn[request_id] = (number + 1, len(ids))
        return list(turns[number + 1])


@dataclass(slots=True)
class _Running:
    began_s: float
    ids: list[int]
    stop: asyncio.Future[StopReason | InferenceError]


@dataclass(slots=True, eq=False)
class FakeReplica(Inference):
    """Implements `Inference`. `token_s` per token, a turn at a time; everything granted runs at once.

    KV: a trajectory's tokens stay until its release; where the pool is too small, those of the idle ones go,
    the longest unused first (`evicted_tokens`). Running ones beyond it are counted (`overflows`).
    """

    scripts: Scripts
    kv_tokens: int = 1 << 20
    token_s: float = 0.0
    version: int = 0
    requests: list[tuple[str, int]] = field(default_factory=list)
    """(trajectory, tokens of context), in order."""
    released: list[str] = field(default_factory=list)
    published: list[int] = field(default_factory=list)
    evicted_tokens: int = 0
    overflows: int = 0
    publish_error: Exception | None = None
    _kv: dict[str, int] = field(default_factory=dict)
    _used: int = 0
    _running: dict[str, _Running] = field(default_factory=dict)
    _fault: str | None = None
    _failures: int = 0

    # ---- faults ----

    def kill(self) -> None:
        """All connections break, now and later."""
        self._fault = "dead"
        for running in list(self._running.values()):
            _stop(running, InferenceError("connection_lost", "the server is gone", retryable=True))

    def hang(self) -> None:
        """Nothing is answered any more, begun or not."""
        self._fault = "hung"

    def fail_next(self, times: int) -> None:
        self._failures = times

    def cut_all(self) -> None:
        """Answer every running turn immediately with its tokens so far, as a server that aborts its
        requests."""
        for running in list(self._running.values()):
            _stop(running, StopReason.aborted)

    # ---- the protocol ----

    async def generate(
        self,
        ids: list[int],
        *,
        max_new_tokens: int,
        stop_ids: frozenset[int],
        sampling: Sampling,
        seed: int,
        request_id: str,
        deadline: float | None,
    ) -> Generation:
        self.requests.append((request_id, len(ids)))
        if self._fault == "dead":
            raise InferenceError("connection_refused", "the server is gone", retryable=True)
        if self._failures:
            self._failures -= 1
            raise InferenceError("http_500", "internal error", retryable=True)
        loop = asyncio.get_running_loop()
        cached = min(self._kv.get(request_id, 0), len(ids) - 1)
        todo = self.scripts.rest_of_turn(request_id, ids)[:max_new_tokens]
        self._hold(request_id, len(ids) + len(todo))
        running = self._running[request_id] = _Running(loop.time(), todo, loop.create_future())
        timer = loop.call_later(self.token_s * len(todo), self._done, running, stop_ids)
        try:
            async with asyncio.timeout_at(deadline):
                ended = await running.stop
        finally:
            timer.cancel()
            del self._running[request_id]
        if isinstance(ended, InferenceError):
            raise ended
        done = todo
        if ended is StopReason.aborted and self.token_s:
            done = todo[: min(len(todo) - 1, int((loop.time() - running.began_s) / self.token_s))]
        elif ended is StopReason.aborted:
            done = []
        return Generation(
            ids=tuple(done),
            logprobs=tuple(map(LOGPROBS.__getitem__, done)),
            version_spans=((0, len(done), self.version),) if done else (),
            finish=ended,
            cached_tokens=cached,
        )

    def _done(self, running: _Running, stop_ids: frozenset[int]) -> None:
        if self._fault != "hung":
            _stop(running, StopReason.stop if running.ids[-1] in stop_ids else StopReason.length)

    def _hold(self, request_id: str, tokens: int) -> None:
        self._used += tokens - self._kv.pop(request_id, 0)
        self._kv[request_id] = tokens
        if self._used > self.kv_tokens:
            for idle in [traj for traj in self._kv if traj not in self._running and traj != request_id]:
                self.evicted_tokens += self._kv[idle]
                self._used -= self._kv.pop(idle)
                if self._used <= self.kv_tokens:
                    return
            self.overflows += 1

    def load(self) -> KvLoad:
        return KvLoad(total=self.kv_tokens, used=self._used, running=len(self._running), waiting=0)

    async def publish(self, version: int, source: Any = None) -> None:
        if self._fault == "hung":
            await asyncio.get_running_loop().create_future()
        if self._fault == "dead":
            raise InferenceError("connection_refused", "the server is gone", retryable=True)
        if self.publish_error is not None:
            raise self.publish_error
        assert version > self.version
        self.version = version
        self.published.append(version)

    async def abort(self, request_id: str) -> None:
        if running := self._running.get(request_id):
            _stop(running, StopReason.aborted)

    def release(self, request_id: str) -> None:
        self.released.append(request_id)
        self._used -= self._kv.pop(request_id, 0)
        if running := self._running.get(request_id):
            _stop(running, StopReason.aborted)


def _stop(running: _Running, result: StopReason | InferenceError) -> None:
    if not running.stop.done():
        running.stop.set_result(result)
