"""What a worker has found out and Redis does not know yet.

    Worker --add, complete--> Unstored --store: answers + XACK, one step--> Redis
                                 |  `store_s` after the first, or at once when an entry is complete
                                 +--release--> Worker: it holds those entries no more

Nobody waits here but `store`, for something to store and then for Redis.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace

from redis import exceptions

from rocstar.sandbox.fabric.client_commands import FabricMessage
from rocstar.sandbox.fabric.errors import memory_error, too_large_error
from rocstar.sandbox.fabric.held import Held, Stored, is_light, portions
from rocstar.sandbox.fabric.link import REDIS_ERRORS
from rocstar.sandbox.fabric.pieces import MAX_MESSAGE_BYTES
from rocstar.sandbox.fabric.stored_pieces import StoredPieces
from rocstar.sandbox.fabric.wire import Answer, Outcome, encode_answers, weight
from rocstar.sandbox.fabric.worker_commands import DONE_TTL_S, Storing, WorkerCommands
from rocstar.sandbox.types import SandboxError

STORE_WEIGHT = 1 << 20
TURN_BYTES = 1 << 16


class Unstored:
    """Answers, and the entries that they complete. Invariant: an entry is acknowledged in the same step that
    stores its last answer, and released after that."""

    def __init__(
        self,
        redis: WorkerCommands,
        stored: StoredPieces,
        release: Callable[[Held], None],
        *,
        worker: str,
        store_s: float,
    ) -> None:
        """release: told of each entry that Redis has all answers of. store_s: how long an answer waits for
        others to travel with."""
        self._redis = redis
        self._stored = stored
        self._worker = worker
        self._release = release
        self._store_s = store_s
        self._answers: deque[Stored] = deque()
        self._finished: list[Held] = []
        self._now = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, entry: Held, call_id: int | None, outcome: Outcome) -> None:
        """The id is None when the outcome speaks for all calls of the entry."""
        entry.unstored += 1
        self._answers.append((entry, call_id, outcome))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._store_s, self._now.set)

    def complete(self, entry: Held, *, is_held: bool) -> None:
        """No more answers come of it. It is acknowledged with the last, if it is still held."""
        if is_held and entry not in self._finished:
            self._finished.append(entry)
        self._now.set()

    def completes(self, entry: Held) -> bool:
        """Whether it is to be acknowledged."""
        return entry in self._finished

    async def store(self) -> None:
        """Stores what is there, in one step with the acknowledgement of the entries it completes."""
        await self._now.wait()
        self._now.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch: list[Stored] = []
        total = 0
        while self._answers and total < STORE_WEIGHT:
            batch.append(self._answers.popleft())
            total += weight(batch[-1][2])
        counts = Counter(entry for entry, _, _ in batch)
        finished = [entry for entry in self._finished if entry.unstored == counts[entry]]
        try:
            await self._write(batch, finished)
        except REDIS_ERRORS:
            self._answers.extendleft(reversed(batch))
            self._now.set()
            raise
        for entry, count in counts.items():
            entry.unstored -= count
        for entry in finished:
            self._finished.remove(entry)
            self._release(entry)
        if self._answers or self._finished:
            self._now.set()

    async def _write(self, batch: list[Stored], finished: list[Held]) -> None:
        by_client: dict[str, list[Answer]] = {}
        done: dict[str, list[int]] = {}
        for entry, call_id, outcome in batch:
            answer = Answer(ref=entry.ref, call_id=call_id, outcome=outcome)
            by_client.setdefault(entry.client, []).append(answer)
            if entry not in finished and call_id is not None:
                entry.partial = True
                done.setdefault(entry.ref, []).append(call_id)
        await self._redis.store(
            Storing(
                messages={
                    client: [await self._message(portion) for portion in portions(answers)]
                    for client, answers in by_client.items()
                },
                done=done,
                finished=[entry.ref for entry in finished],
                partial=[entry.ref for entry in finished if entry.partial],
                pieces=[entry.pieces for entry in finished if entry.pieces],
            )
        )

    async def _message(self, portion: list[Answer]) -> FabricMessage:
        """Its pieces are in Redis."""
        if is_light(portion):
            blob, _ = encode_answers(portion)
            if len(blob) >= TURN_BYTES:
                await asyncio.sleep(0)  # others have a turn
            return FabricMessage(blob=blob)
        (answer,) = portion
        size = weight(answer.outcome)
        if size > MAX_MESSAGE_BYTES:
            return _failed(answer, too_large_error(size, MAX_MESSAGE_BYTES))
        blob, pieces = await asyncio.to_thread(encode_answers, portion, apart=True)
        if (size := sum(map(len, pieces))) > MAX_MESSAGE_BYTES:
            return _failed(answer, too_large_error(size, MAX_MESSAGE_BYTES))
        name = f"{self._worker}:{answer.ref}:{answer.call_id}"  # the same when this is cut off and done again
        try:
            await self._stored.put(name, pieces, ttl_s=DONE_TTL_S)
        except exceptions.OutOfMemoryError:
            await self._stored.forget([name])
            return _failed(answer, memory_error(size))
        return FabricMessage(blob=blob, pieces=name)


def _failed(answer: Answer, error: SandboxError) -> FabricMessage:
    return FabricMessage(blob=encode_answers([replace(answer, outcome=error)])[0])
