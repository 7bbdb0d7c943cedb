"""The answers of a worker that are not yet in Redis, and the entries that they belong to.

    Worker --add, complete--> PendingAnswers --store: answers + XACK, one step--> Redis
                                 |  `store_s` after the first, or immediately when an entry is complete
                                 +--release--> Worker: it no longer holds those entries

Only `store` waits: for an answer, then for Redis.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field, replace

from redis import exceptions

from rocstar.sandbox.fabric.chunks import MAX_MESSAGE_BYTES
from rocstar.sandbox.fabric.redis_commands import DONE_TTL_S, FabricMessage, WorkerCommands, WorkerEntry
from rocstar.sandbox.fabric.redis_connection import REDIS_ERRORS
from rocstar.sandbox.fabric.wire import LIGHT, Answer, Outcome, encode_answers, weight
from rocstar.sandbox.types import SandboxError

STORE_WEIGHT = 1 << 20
TURN_BYTES = 1 << 16

MOST_ANSWERS = 64
"""The maximum of answers per message: a client settles them in a millisecond."""


PendingAnswer = tuple[WorkerEntry, int | None, Outcome]
"""An answer to store; the call id is None if it is for all calls of the entry."""


@dataclass(eq=False)
class PendingAnswers:
    """Stores answers and acknowledges the entries that they complete.

    release: called with each entry whose answers are all in Redis. store_s: seconds that an answer waits for
    others, to be stored together. finished: entries about to be acknowledged.

    Invariant: an entry is acknowledged in the same step that stores its last answer, and released after that.
    """

    redis: WorkerCommands
    release: Callable[[WorkerEntry], None]
    _: KW_ONLY
    store_s: float
    finished: list[WorkerEntry] = field(default_factory=list)
    _answers: deque[PendingAnswer] = field(default_factory=deque)
    _now: asyncio.Event = field(default_factory=asyncio.Event)
    _timer: asyncio.TimerHandle | None = None

    def add(self, entry: WorkerEntry, call_id: int | None, outcome: Outcome) -> None:
        """Add an answer. The call id is None if the outcome is for all calls of the entry."""
        if isinstance(outcome, SandboxError) and outcome.kind == "closed":  # other workers may run the call
            outcome = SandboxError(str(outcome), kind="closed", retryable=True)
        entry.pending += 1
        self._answers.append((entry, call_id, outcome))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.store_s, self._now.set)

    def complete(self, entry: WorkerEntry, *, is_held: bool) -> None:
        """Record that the entry has no more answers: it is acknowledged with the last, if it is still
        held."""
        if is_held and entry not in self.finished:
            self.finished.append(entry)
        self._now.set()

    async def store(self) -> None:
        """Store the pending answers and acknowledge the entries that they complete, in one step."""
        await self._now.wait()
        self._now.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch: list[PendingAnswer] = []
        total = 0
        while self._answers and total < STORE_WEIGHT:
            batch.append(self._answers.popleft())
            total += weight(batch[-1][2])
        counts = Counter(entry for entry, _, _ in batch)
        finished = [entry for entry in self.finished if entry.pending == counts[entry]]
        try:
            await self._write(batch, finished)
        except REDIS_ERRORS:
            self._answers.extendleft(reversed(batch))
            self._now.set()
            raise
        for entry, count in counts.items():
            entry.pending -= count
        for entry in finished:
            self.finished.remove(entry)
            self.release(entry)
        if self._answers or self.finished:
            self._now.set()

    async def _write(self, batch: list[PendingAnswer], finished: list[WorkerEntry]) -> None:
        by_client: dict[str, list[Answer]] = {}
        done: dict[str, list[int]] = {}
        for entry, call_id, outcome in batch:
            answer = Answer(ref=entry.ref, call_id=call_id, outcome=outcome)
            by_client.setdefault(entry.client, []).append(answer)
            if entry not in finished and call_id is not None:
                entry.partial = True
                done.setdefault(entry.ref, []).append(call_id)
        messages = {
            client: [await self._message(portion) for portion in split_answers(answers)]
            for client, answers in by_client.items()
        }
        await self.redis.store(messages, done, finished)

    async def _message(self, portion: list[Answer]) -> FabricMessage:
        """Return a message of answers after writing its chunks."""
        if sum(weight(answer.outcome) for answer in portion) <= LIGHT:
            blob, _ = encode_answers(portion)
            if len(blob) >= TURN_BYTES:
                await asyncio.sleep(0)  # yield to the event loop
            return FabricMessage(blob=blob)
        (answer,) = portion
        size = weight(answer.outcome)
        if size <= MAX_MESSAGE_BYTES:
            blob, chunks = await asyncio.to_thread(encode_answers, portion, apart=True)
            size = sum(map(len, chunks))
        if size > MAX_MESSAGE_BYTES:
            limit = f"the fabric carries at most {MAX_MESSAGE_BYTES}. Lower output_bytes."
            message = f"the result has {size} bytes; {limit}"
            return _failed(answer, SandboxError(message, kind="fabric", retryable=False))
        name = f"{self.redis.info.name}:{answer.ref}:{answer.call_id}"  # the same after a retry
        try:
            await self.redis.put_chunks(name, chunks, ttl_s=DONE_TTL_S)
        except exceptions.OutOfMemoryError:
            await self.redis.delete_chunks([name])
            message = f"Redis has no memory for a result of {size} bytes. Try again later."
            return _failed(answer, SandboxError(message, kind="full", retryable=True))
        return FabricMessage(blob=blob, chunks=name)


def _failed(answer: Answer, error: SandboxError) -> FabricMessage:
    return FabricMessage(blob=encode_answers([replace(answer, outcome=error)])[0])


def split_answers(answers: list[Answer]) -> Iterator[list[Answer]]:
    """Yield the answers of each message: several light ones or a single heavy one."""
    portion: list[Answer] = []
    total = 0
    for answer in answers:
        size = weight(answer.outcome)
        if portion and (total + size > LIGHT or len(portion) == MOST_ANSWERS):
            yield portion
            portion, total = [], 0
        portion.append(answer)
        total += size
    if portion:
        yield portion
