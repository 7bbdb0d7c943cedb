"""Puts a client's calls into Redis and deletes entries for which no caller waits any more.

    open_calls.take --> draft --> chunks, if it is long: a thread, then a MiB a command --> entry: one command

A long call is sent in many short steps.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field

from redis import exceptions

from rocstar.sandbox.fabric.open_calls import OpenCall, OpenCalls
from rocstar.sandbox.fabric.redis_commands import CHUNKS_TTL_S, NO_BOUND, ClientCommands, FabricMessage
from rocstar.sandbox.fabric.redis_connection import REDIS_ERRORS
from rocstar.sandbox.fabric.wire import LIGHT, EntryDraft, full_error

SEND_WEIGHT = 1 << 20
"""The characters that one command writes, approximately."""


@dataclass(eq=False)
class Sender:
    """Sends the calls of one client. wake: set when there is something to send or to delete. chunks: names of
    the chunks of entries in Redis, by ref.

    Invariant: after each attempt to send, a call is in an entry that Redis confirmed, settled, or in the
    outbox.
    """

    redis: ClientCommands
    open_calls: OpenCalls
    counts: Counter[str]
    _: KW_ONLY
    max_queued_entries: int
    chunks: dict[str, str] = field(default_factory=dict)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def write(self) -> None:
        await self.wake.wait()
        self.wake.clear()
        await self._send()
        await self.delete_abandoned()

    async def _send(self) -> None:
        """Empty the outbox, with one command per `SEND_WEIGHT` of entries that have the same key."""
        while first := self.open_calls.take(LIGHT):
            entries, key, weight = [first], first[0].key, entry_weight(first)
            try:
                while weight < SEND_WEIGHT and self.open_calls.next_key == key:
                    entries.append(self.open_calls.take(LIGHT))
                    weight += entry_weight(entries[-1])
                await self._enqueue(key, entries)
            finally:
                self.open_calls.unsent(itertools.chain(*entries))  # the calls that Redis did not accept

    async def _enqueue(self, key: tuple[str, bool], entries: list[list[OpenCall]]) -> None:
        flavour, again = key
        longest = NO_BOUND if again else self.max_queued_entries
        names: list[str] = []
        try:
            drafts = [await self._draft(calls, names) for calls in entries]
            now = asyncio.get_running_loop().time()
            messages = []
            for draft, name, calls in zip(drafts, names, entries, strict=True):
                left_s = [None if call.deadline is None else call.deadline - now for call in calls]
                messages.append(FabricMessage(blob=draft.encode(left_s), chunks=name))
            refs = await self.redis.enqueue(flavour, messages, longest=longest)
        except exceptions.OutOfMemoryError:
            if again:
                raise
            self._refuse(itertools.chain(*entries), "Redis is out of memory")
            await self.redis.delete_chunks(names)
            return
        for calls, ref, name in zip(entries, refs, names, strict=False):
            self.counts["entries"] += 1
            self.counts["resent_calls"] += len(calls) if again else 0
            self.open_calls.sent(calls, ref)
            if name:
                self.chunks[ref] = name
        refused = itertools.chain(*entries[len(refs) :])
        self._refuse(refused, f"{self.max_queued_entries} entries of flavour {flavour} are waiting")
        await self.redis.delete_chunks(names[len(refs) :])

    async def _draft(self, calls: list[OpenCall], names: list[str]) -> EntryDraft:
        """Return the draft of an entry after writing its chunks. Append their name, or "", to `names`."""
        named = [(call.id, call.request) for call in calls]
        if entry_weight(calls) <= LIGHT:
            names.append("")
            return EntryDraft(named)
        draft = await asyncio.to_thread(EntryDraft, named, apart=True)
        names.append(f"{self.redis.client}:{next(self._numbers)}")
        await self.redis.put_chunks(names[-1], draft.chunks, ttl_s=CHUNKS_TTL_S)
        return draft

    def _refuse(self, calls: Iterable[OpenCall], reason: str) -> None:
        ids = [call.id for call in calls]
        self.counts["refused"] += len(ids)
        self.open_calls.fail(ids, full_error(reason))

    def live_chunks(self) -> list[str]:
        """Return the names of the chunks whose expiry must be renewed. Forget those of settled entries: a
        worker deleted them, or they expire."""
        for ref in self.chunks.keys() - self.open_calls.entries.keys() - {*self.open_calls.abandoned}:
            del self.chunks[ref]
        return list(self.chunks.values())

    async def delete_abandoned(self) -> None:
        refs, self.open_calls.abandoned = self.open_calls.abandoned, []
        names = [self.chunks[ref] for ref in refs if ref in self.chunks]
        try:
            await self.redis.delete(refs)
            await self.redis.delete_chunks(names)
        except REDIS_ERRORS:
            self.open_calls.abandoned += refs
            raise
        for ref in refs:
            self.chunks.pop(ref, None)


def entry_weight(calls: Iterable[OpenCall]) -> int:
    return sum(call.weight for call in calls)
