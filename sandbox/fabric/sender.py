"""Puts a client's calls into Redis, and takes out what nobody waits for any more.

    ledger.take --> draft --> pieces, if it is long: a thread, then a MiB a command --> entry: one command

A long call is on its way for a while, in steps that are short each.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable

from redis import exceptions

from rocstar.sandbox.fabric.client_commands import NO_BOUND, PIECES_TTL_S, ClientCommands, FabricMessage
from rocstar.sandbox.fabric.errors import full_error
from rocstar.sandbox.fabric.ledger import CallLedger, OpenCall
from rocstar.sandbox.fabric.link import REDIS_ERRORS
from rocstar.sandbox.fabric.stored_pieces import StoredPieces
from rocstar.sandbox.fabric.wire import LIGHT, EntryDraft

SEND_WEIGHT = 1 << 20
"""About so many characters are written by one command."""


class Sender:
    """Invariant: whatever happens while sending, each call is afterwards in an entry that Redis has
    confirmed, settled, or in the outbox again. `wake` says that there is something to send or to delete.
    `pieces`: of entries that Redis has, by ref, the names of their pieces."""

    def __init__(
        self,
        redis: ClientCommands,
        stored: StoredPieces,
        ledger: CallLedger,
        counts: Counter[str],
        *,
        client: str,
        max_queued_entries: int,
    ) -> None:
        self._redis = redis
        self._stored = stored
        self._ledger = ledger
        self._counts = counts
        self._names = (f"{client}:{number}" for number in itertools.count(1))
        self._max_queued_entries = max_queued_entries
        self.pieces: dict[str, str] = {}
        self.wake = asyncio.Event()

    async def write(self) -> None:
        await self.wake.wait()
        self.wake.clear()
        await self._send()
        await self.delete_abandoned()

    async def _send(self) -> None:
        """Empties the outbox: one command for up to `SEND_WEIGHT` of entries of one kind."""
        while first := self._ledger.take(LIGHT):
            entries, key, weight = [first], first[0].key, entry_weight(first)
            try:
                while weight < SEND_WEIGHT and self._ledger.next_key == key:
                    entries.append(self._ledger.take(LIGHT))
                    weight += entry_weight(entries[-1])
                await self._enqueue(key, entries)
            finally:
                self._ledger.unsent(itertools.chain(*entries))  # those that Redis did not take

    async def _enqueue(self, key: tuple[str, bool], entries: list[list[OpenCall]]) -> None:
        flavour, again = key
        longest = NO_BOUND if again else self._max_queued_entries
        names: list[str] = []
        try:
            drafts = [await self._drafted(calls, names) for calls in entries]
            now = asyncio.get_running_loop().time()
            messages = [
                FabricMessage(blob=draft.encode([remaining_s(call, now) for call in calls]), pieces=name)
                for draft, name, calls in zip(drafts, names, entries, strict=True)
            ]
            refs = await self._redis.enqueue(flavour, messages, longest=longest)
        except exceptions.OutOfMemoryError:
            if again:
                raise
            self._refuse(itertools.chain(*entries), "Redis is out of memory")
            await self._stored.forget(names)
            return
        for calls, ref, name in zip(entries, refs, names, strict=False):
            self._counts["entries"] += 1
            self._counts["resent_calls"] += len(calls) if again else 0
            self._ledger.sent(calls, ref)
            if name:
                self.pieces[ref] = name
        refused = itertools.chain(*entries[len(refs) :])
        self._refuse(refused, f"{self._max_queued_entries} entries of flavour {flavour} are waiting")
        await self._stored.forget(names[len(refs) :])

    async def _drafted(self, calls: list[OpenCall], names: list[str]) -> EntryDraft:
        """The entry, whose pieces are in Redis. Adds their name, or nothing, to `names`."""
        named = [(call.id, call.request) for call in calls]
        if entry_weight(calls) <= LIGHT:
            names.append("")
            return EntryDraft(named)
        draft = await asyncio.to_thread(EntryDraft, named, apart=True)
        names.append(next(self._names))
        await self._stored.put(names[-1], draft.pieces, ttl_s=PIECES_TTL_S)
        return draft

    def _refuse(self, calls: Iterable[OpenCall], reason: str) -> None:
        ids = [call.id for call in calls]
        self._counts["refused"] += len(ids)
        self._ledger.fail(ids, full_error(reason))

    def forget_settled(self) -> None:
        """Of entries that nobody waits for: a worker has deleted their pieces, or they expire."""
        abandoned = set(self._ledger.abandoned)
        for ref in [ref for ref in self.pieces if ref not in self._ledger.entries and ref not in abandoned]:
            del self.pieces[ref]

    async def delete_abandoned(self) -> None:
        refs, self._ledger.abandoned = self._ledger.abandoned, []
        try:
            await self._redis.delete(refs)
            await self._stored.forget([self.pieces[ref] for ref in refs if ref in self.pieces])
        except REDIS_ERRORS:
            self._ledger.abandoned += refs
            raise
        for ref in refs:
            self.pieces.pop(ref, None)


def remaining_s(call: OpenCall, now: float) -> float | None:
    return None if call.deadline is None else call.deadline - now


def entry_weight(calls: Iterable[OpenCall]) -> int:
    return sum(call.weight for call in calls)
