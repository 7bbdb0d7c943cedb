"""Puts a client's calls into Redis, and takes out what nobody waits for any more."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable

from redis import exceptions

from rocstar.sandbox.fabric.client_commands import NO_BOUND, ClientCommands
from rocstar.sandbox.fabric.errors import full_error
from rocstar.sandbox.fabric.ledger import CallLedger, OpenCall
from rocstar.sandbox.fabric.link import REDIS_ERRORS
from rocstar.sandbox.fabric.wire import WireCall, encode_entry

ENTRY_WEIGHT = 1 << 20
"""An entry grows no larger, about, than this many characters, unless one call alone does."""

SEND_WEIGHT = 4 << 20


class Sender:
    """Invariant: whatever happens while sending, each call is afterwards in an entry that Redis has
    confirmed, settled, or in the outbox again. `wake` says that there is something to send or to delete."""

    def __init__(
        self, redis: ClientCommands, ledger: CallLedger, counts: Counter[str], *, max_queued_entries: int
    ) -> None:
        self._redis = redis
        self._ledger = ledger
        self._counts = counts
        self._max_queued_entries = max_queued_entries
        self.wake = asyncio.Event()

    async def write(self) -> None:
        await self.wake.wait()
        self.wake.clear()
        await self._send()
        await self.delete_abandoned()

    async def _send(self) -> None:
        """Empties the outbox: one command for up to `SEND_WEIGHT` of entries of one kind."""
        while first := self._ledger.take(ENTRY_WEIGHT):
            entries, key, weight = [first], first[0].key, entry_weight(first)
            try:
                while weight < SEND_WEIGHT and self._ledger.next_key == key:
                    entries.append(self._ledger.take(ENTRY_WEIGHT))
                    weight += entry_weight(entries[-1])
                await self._enqueue(key, entries)
            finally:
                self._ledger.unsent(itertools.chain(*entries))  # those that Redis did not take

    async def _enqueue(self, key: tuple[str, bool], entries: list[list[OpenCall]]) -> None:
        flavour, again = key
        now = asyncio.get_running_loop().time()
        blobs = [encode_entry([to_wire(call, now) for call in calls]) for calls in entries]
        longest = NO_BOUND if again else self._max_queued_entries
        try:
            refs = await self._redis.enqueue(flavour, blobs, longest=longest)
        except exceptions.OutOfMemoryError:
            if again:
                raise
            self._refuse(itertools.chain(*entries), "Redis is out of memory")
            return
        for calls, ref in zip(entries, refs, strict=False):
            self._counts["entries"] += 1
            self._counts["resent_calls"] += len(calls) if again else 0
            self._ledger.sent(calls, ref)
        refused = itertools.chain(*entries[len(refs) :])
        self._refuse(refused, f"{self._max_queued_entries} entries of flavour {flavour} are waiting")

    def _refuse(self, calls: Iterable[OpenCall], reason: str) -> None:
        ids = [call.id for call in calls]
        self._counts["refused"] += len(ids)
        self._ledger.fail(ids, full_error(reason))

    async def delete_abandoned(self) -> None:
        refs, self._ledger.abandoned = self._ledger.abandoned, []
        try:
            await self._redis.delete(refs)
        except REDIS_ERRORS:
            self._ledger.abandoned += refs
            raise


def to_wire(call: OpenCall, now: float) -> WireCall:
    remaining_s = None if call.deadline is None else call.deadline - now
    return WireCall(id=call.id, request=call.request, remaining_s=remaining_s)


def entry_weight(calls: Iterable[OpenCall]) -> int:
    return sum(call.weight for call in calls)
