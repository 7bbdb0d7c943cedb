"""Takes a client's answers out of Redis, and looks whether Redis still has what it was given."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from rocstar.sandbox.child.flavours import FLAVOURS
from rocstar.sandbox.fabric.client_commands import ClientCommands, FabricMessage
from rocstar.sandbox.fabric.ledger import CallLedger, Effect
from rocstar.sandbox.fabric.link import Link, id_order
from rocstar.sandbox.fabric.stored_pieces import PiecesGone, StoredPieces
from rocstar.sandbox.fabric.window import CallWindow
from rocstar.sandbox.fabric.wire import Answer, WireError, WrittenAnswers
from rocstar.sandbox.fabric.workers import WorkerInfo

AUDIT_STEP = 16
SMALLEST_WINDOW = 64
AHEAD = 4
"""Calls in Redis for each program that can run, at most and if that is more: a worker holds two, and as many
wait for it."""

TURN_BYTES = 1 << 16
"""Of messages, that are read in one turn of the loop; and the rest of the last."""

RETRY_DELAY_S = 0.05


UNSERVED = CallWindow(SMALLEST_WINDOW // 2, SMALLEST_WINDOW)
"""Of a flavour whose workers nobody has seen yet."""

UNSEEN_S = 2.0
"""Who has not looked for workers for so long does not know since when there are none."""


def windows_of(workers: Iterable[WorkerInfo]) -> dict[str, CallWindow]:
    """Of the flavours that somebody runs."""
    capacities: Counter[str] = Counter()
    for worker in workers:
        capacities.update(dict.fromkeys(worker.flavours, worker.capacity))
    return {
        flavour: CallWindow(capacity, max(SMALLEST_WINDOW, AHEAD * capacity))
        for flavour, capacity in capacities.items()
    }


class Receiver:
    """The cursor is the id of the last message that was read from the reply stream. `flavours` have a live
    worker; `served_at` says, by `loop.time()`, when a flavour last had one, and `counted_at` when they were
    last counted, which they have been since `looking_since`. A flavour whose workers have gone keeps its
    window: they may be back, and what is in Redis by then cannot be shared out any more.
    `wake` is called when there is something to be sent. pieces: of the entries that Redis has, by ref, the
    names of their pieces."""

    def __init__(
        self,
        link: Link,
        redis: ClientCommands,
        stored: StoredPieces,
        ledger: CallLedger,
        counts: Counter[str],
        wake: Callable[[], None],
        *,
        pieces: Mapping[str, str],
        audit_s: float,
    ) -> None:
        self._link = link
        self._redis = redis
        self._stored = stored
        self._pieces = pieces
        self._ledger = ledger
        self._counts = counts
        self._wake = wake
        self._audit_s = audit_s
        self._cursor = "0-0"
        self._audited_era = -1
        self._suspects: dict[str, str] = {}
        self._server_minus_loop_s: float | None = None
        self._data_lost = False
        self.workers: list[WorkerInfo] = []
        self.flavours: frozenset[str] = frozenset()
        self.served_at: dict[str, float] = {}
        self.counted_at = self.looking_since = 0.0
        self._ledger.windows = dict.fromkeys(FLAVOURS, UNSERVED)

    @property
    def most_in_redis(self) -> int:
        """Calls of a flavour, at most."""
        return max((window.most for window in self._ledger.windows.values()), default=SMALLEST_WINDOW)

    async def read(self) -> None:
        read = 0
        for stream_id, message in await self._redis.read(self._cursor):
            try:
                answers = await self._answers(message)
            except (WireError, PiecesGone):
                self._counts["unreadable"] += 1  # the audit finds these entries gone and sends them again
            else:
                self._receive(answers)
            self._cursor = stream_id
            if message.pieces:
                await self._stored.forget([message.pieces])
            if (read := read + len(message.blob)) >= TURN_BYTES:
                read = 0
                await asyncio.sleep(0)  # others have a turn

    async def _answers(self, message: FabricMessage) -> list[Answer]:
        written = WrittenAnswers(message.blob)
        if not written.sizes:
            return written.answers()
        pieces = await self._stored.get(message.pieces, written.sizes)
        return await asyncio.to_thread(written.answers, pieces)

    def _receive(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            for effect, call_id in self._ledger.answer(answer):
                if effect is Effect.LATE:
                    self._counts["late_answers"] += 1
                elif effect is Effect.RETRY:
                    self._counts["retries"] += 1
                    delay_s = RETRY_DELAY_S * 2 ** self._ledger.calls[call_id].attempts
                    asyncio.get_running_loop().call_later(delay_s, self._requeue, call_id)
        if self._ledger.abandoned or self._ledger.next_key is not None:
            self._wake()

    def _requeue(self, call_id: int) -> None:
        self._ledger.requeue(call_id)
        self._wake()

    async def audit(self) -> None:
        """Every `audit_s`: renews the lease, counts the workers, and looks whether Redis still holds what it
        was given: every entry after a failure, otherwise a few in turn."""
        era = self._link.era
        await self.refresh()
        everything, self._data_lost = self._data_lost or era != self._audited_era, False
        await self._check(everything=everything)
        self._audited_era = era
        await asyncio.sleep(self._audit_s)

    async def refresh(self) -> None:
        clock = self._link.clock
        if self._server_minus_loop_s is None:
            self._server_minus_loop_s = await self._redis.server_s() - clock()
        upkeep = await self._redis.keep_up(
            self._cursor, clock() + self._server_minus_loop_s, list(self._pieces.values())
        )
        now = clock()
        if now - self.counted_at > max(UNSEEN_S, 4 * self._audit_s):
            self.looking_since = now
        self._server_minus_loop_s = upkeep.server_s - now
        self._data_lost |= not upkeep.known
        self.workers, self.counted_at = upkeep.workers, now
        self.flavours = frozenset(name for worker in self.workers for name in worker.flavours)
        self.served_at.update(dict.fromkeys(self.flavours, now))
        self._ledger.windows = {**self._ledger.windows, **windows_of(self.workers)}
        if self._ledger.next_key is not None:
            self._wake()

    async def _check(self, *, everything: bool) -> None:
        refs = list(self._ledger.entries) if everything else self._ledger.oldest(AUDIT_STEP)
        for start in range(0, len(refs), AUDIT_STEP):
            newest, missing = await self._redis.audit(refs[start : start + AUDIT_STEP])
            for ref in missing:
                self._suspects[ref] = min(self._suspects.get(ref, newest), newest, key=id_order)
            if newest != "0-0" and id_order(newest) < id_order(self._cursor):
                self._cursor = "0-0"  # another stream by that name, from a clock that runs behind
        self._resend_lost()

    def _resend_lost(self) -> None:
        """An entry that is gone was answered in a message that Redis had before; once all of those are read,
        what has no answer is lost."""
        for ref, newest in list(self._suspects.items()):
            if ref in self._ledger.entries and id_order(self._cursor) < id_order(newest):
                continue  # the answers may be among those still to be read
            del self._suspects[ref]
            if self._ledger.lost(ref):
                self._counts["lost_entries"] += 1
                self._wake()
