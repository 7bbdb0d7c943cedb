"""The Redis commands of clients and workers. A method whose command fails raises one of `REDIS_ERRORS`."""

import asyncio
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis import exceptions

from rocstar.sandbox.fabric.chunks import grouped
from rocstar.sandbox.fabric.redis_connection import BLOCK_MS, make_ref, split_refs, with_timeout
from rocstar.sandbox.fabric.wire import WireError, WorkerInfo, decode_workers, encode_worker

LEASE_S = 30
"""Seconds without renewal after which a client counts as dead and its calls are no longer run."""

REPLY_TTL_S = 120
"""Seconds after which the answers to a client expire."""

CHUNKS_TTL_S = 120
"""Seconds after which the chunks of an entry expire if its client does not renew them."""

READ_COUNT = 16

NO_BOUND = -1


ENQUEUE, AUDIT, STEP, FORGET_CONSUMER = (
    Path(__file__).with_name(f"{name}.lua").read_text(encoding="utf-8")
    for name in ("enqueue", "audit", "step", "forget_consumer")
)
"""Scripts of Redis; each begins with its keys, arguments and result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricMessage:
    """blob: MessagePack (wire.py). chunks: the name of the message's chunks, or ""."""

    blob: bytes
    chunks: str = ""


@dataclass(eq=False)
class Commands:
    """The commands of clients and workers.

    A long message has a hash of chunks, which is written and read about a MiB per command, so that no client
    of Redis and no event loop is blocked.
    """

    redis: Any  # redis-py's annotations differ from release to release
    prefix: str

    def key(self, *parts: str) -> str:
        """Return a key of the fabric. Its parts are one of

        calls FLAVOUR     a stream of entries
        reply CLIENT      a stream of answers
        client CLIENT     the client's lease
        done REF          ids of the answered calls of an unfinished entry
        pieces NAME       a hash of chunks
        workers           all workers, sorted by lease end
        """
        return ":".join((self.prefix, *parts))

    async def server_s(self) -> float:
        seconds, microseconds = await with_timeout(self.redis.time())
        return float(seconds + microseconds / 1e6)

    async def put_chunks(self, name: str, chunks: Sequence[bytes], *, ttl_s: int) -> None:
        """Write the chunks; repeat the call after a failure."""
        key = self.key("pieces", name)
        for numbers in grouped([len(chunk) for chunk in chunks]):
            async with self.redis.pipeline(transaction=True) as pipe:  # no hash without an expiry
                pipe.hset(key, mapping={str(number): chunks[number] for number in numbers})
                pipe.expire(key, ttl_s)
                await with_timeout(pipe.execute())

    async def get_chunks(self, name: str, sizes: Sequence[int]) -> list[bytes]:
        """Return the chunks of a message. Raise WireError if one is missing or has another size."""
        key, found = self.key("pieces", name), []
        for numbers in grouped(sizes):
            given = await with_timeout(self.redis.hmget(key, [str(number) for number in numbers]))
            for number, chunk in zip(numbers, given, strict=True):
                if chunk is None or len(chunk) != sizes[number]:
                    raise WireError(f"Redis lost chunk {number} of {len(sizes)} of this message")
                found.append(chunk)
        return found

    async def delete_chunks(self, names: Iterable[str]) -> None:
        if keys := [self.key("pieces", name) for name in names if name]:
            await with_timeout(self.redis.unlink(*keys))


@dataclass(eq=False)
class ClientCommands(Commands):
    client: str

    async def enqueue(self, flavour: str, entries: Sequence[FabricMessage], *, longest: int) -> list[str]:
        """Append entries and return the refs of those accepted: the first ones, up to a stream length of
        `longest` (or NO_BOUND)."""
        key = self.key("calls", flavour)
        sent = [part for entry in entries for part in (entry.blob, entry.chunks)]
        ids = await with_timeout(self.redis.eval(ENQUEUE, 1, key, longest, self.client, *sent))
        return [make_ref(flavour, stream_id.decode()) for stream_id in ids]

    async def delete(self, refs: Iterable[str]) -> None:
        """Delete entries from their streams; a worker that runs one notices at its next heartbeat."""
        for flavour, ids in split_refs(refs).items():
            await with_timeout(self.redis.xdel(self.key("calls", flavour), *ids))

    async def read(self, cursor: str) -> list[tuple[str, FabricMessage]]:
        """Return (id, message) pairs after `cursor` in the reply stream; wait up to `BLOCK_MS` for the
        first."""
        streams = await with_timeout(self.redis.xread({self._reply: cursor}, count=READ_COUNT, block=BLOCK_MS))
        return [
            (stream_id.decode(), FabricMessage(blob=fields.get(b"answers", b""), chunks=text_field(fields, b"pieces")))
            for _, messages in streams
            for stream_id, fields in messages  # any fields: other clients may have written the message
        ]

    async def keep_up(
        self, cursor: str, server_s: float, chunks: Iterable[str]
    ) -> tuple[float, bool, list[WorkerInfo]]:
        """Renew the lease and the `chunks` of entries, trim answers before `cursor`, list the workers that
        are alive at `server_s`. Return (Redis's clock, True if Redis still had this client's lease,
        workers)."""
        async with self.redis.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.set(self.key("client", self.client), 1, ex=LEASE_S, get=True)
            pipe.expire(self._reply, REPLY_TTL_S)
            pipe.xtrim(self._reply, minid=cursor, approximate=False)
            pipe.zrange(self.key("workers"), f"({server_s}", "+inf", byscore=True)
            for name in chunks:
                pipe.expire(self.key("pieces", name), CHUNKS_TTL_S)
            (seconds, microseconds), lease, _, _, members, *_ = await with_timeout(pipe.execute())
        return seconds + microseconds / 1e6, lease is not None, decode_workers(members)

    async def audit(self, refs: Sequence[str]) -> tuple[str, list[str]]:
        """Return (newest id of the reply stream, or 0-0; the entries that Redis no longer has)."""
        entries = [(flavour, ids[0]) for ref in refs for flavour, ids in split_refs([ref]).items()]
        keys = [self._reply, *(self.key("calls", flavour) for flavour, _ in entries)]
        newest, missing = await with_timeout(
            self.redis.eval(AUDIT, len(keys), *keys, *(stream_id for _, stream_id in entries))
        )
        return newest.decode(), [refs[number - 1] for number in missing]

    async def leave(self) -> None:
        await with_timeout(self.redis.delete(self._reply, self.key("client", self.client)))

    @property
    def _reply(self) -> str:
        return self.key("reply", self.client)


def text_field(fields: Mapping[bytes, bytes], name: bytes) -> str:
    return fields.get(name, b"").decode("utf-8", "replace")


# --- workers ------------------------------------------------------------------------------------------------

GROUP = "workers"
HANDED_BACK = "handed-back"
HANDED_BACK_IDLE_MS = 3_600_000
RECLAIM_COUNT = 4
DONE_TTL_S = 600
KEY_TTL_S = 86_400
FORGET_IDLE_S = 60
MOST_IDS = 1000
"""The maximum of ids per command of a script: the Lua stack holds a few thousand."""

_DONE = struct.Struct("<Q")


GROUP_LOST = ("NOGROUP", "UNBLOCKED", "no such key")
"""Parts of the errors of a worker's command if Redis lost the consumer group, and with it all other data."""


@dataclass(slots=True, eq=False, kw_only=True)
class WorkerEntry:
    """An entry that was delivered to this worker and is not finished.

    Args:
        blob: the message, until it is decoded.
        chunks: the name of the message's chunks, or "".
        deliveries: the number of workers that received it, including this one.
        era: the connection's, when the entry was delivered.
        waiting: calls without an answer.
        pending: the number of answers not yet in Redis.
        partial: some answers were stored before the entry was complete.
    """

    flavour: str
    stream_id: str
    client: str
    blob: bytes
    chunks: str
    deliveries: int
    era: int = 0
    waiting: set[int] = field(default_factory=set)
    pending: int = 0
    partial: bool = False
    task: asyncio.Task[None] | None = None

    @property
    def ref(self) -> str:
        return make_ref(self.flavour, self.stream_id)


@dataclass(eq=False)
class WorkerCommands(Commands):
    info: WorkerInfo

    async def make_groups(self) -> None:
        for flavour in self.info.flavours:
            try:
                async with self.redis.pipeline(transaction=True) as pipe:  # no stream without an expiry
                    pipe.xgroup_create(self.key("calls", flavour), GROUP, id="0", mkstream=True)
                    pipe.expire(self.key("calls", flavour), KEY_TTL_S)
                    await with_timeout(pipe.execute())
            except exceptions.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise

    async def pull(self) -> list[WorkerEntry]:
        """Return the next entry of each flavour; wait for the first up to `BLOCK_MS`."""
        flavours = {self.key("calls", flavour): flavour for flavour in self.info.flavours}
        streams = dict.fromkeys(flavours, ">")
        found = await with_timeout(self.redis.xreadgroup(GROUP, self.info.name, streams, count=1, block=BLOCK_MS))
        return [
            _delivery(flavours[stream.decode()], stream_id, fields, 1)
            for stream, messages in found
            for stream_id, fields in messages
        ]

    async def reclaim(
        self, flavour: str, idle_s: float, cursor: str, held: Mapping[str, int]
    ) -> tuple[str, list[WorkerEntry]]:
        """Claim entries whose worker has been silent for `idle_s`. Return (next cursor, 0-0 at the end;
        entries).

        held: delivery counts of this worker's entries. After a pause of this process they may be among the
            claimed; no worker died then, so their counts stay.
        """
        key = self.key("calls", flavour)
        following, messages, _ = await with_timeout(
            self.redis.xautoclaim(
                key, GROUP, self.info.name, round(idle_s * 1000), start_id=cursor, count=RECLAIM_COUNT
            )
        )
        deliveries = []
        for stream_id, fields in messages:
            if (times := held.get(make_ref(flavour, stream_id.decode()))) is not None:
                await with_timeout(
                    self.redis.xclaim(key, GROUP, self.info.name, 0, [stream_id], retrycount=times, justid=True)
                )
                continue
            states = await with_timeout(self.redis.xpending_range(key, GROUP, stream_id, stream_id, 1))
            times = states[0]["times_delivered"] if states else 1
            deliveries.append(_delivery(flavour, stream_id, fields, times))
        return following.decode(), deliveries

    async def answered(self, client: str, ref: str) -> set[int] | None:
        """Return the ids of an entry's calls that have stored answers, or None if its client is dead."""
        async with self.redis.pipeline(transaction=False) as pipe:
            pipe.exists(self.key("client", client))
            pipe.get(self.key("done", ref))
            alive, done = await with_timeout(pipe.execute())
        return {call_id for (call_id,) in _DONE.iter_unpack(done or b"")} if alive else None

    async def store(
        self,
        messages: Mapping[str, Sequence[FabricMessage]],
        done: Mapping[str, Sequence[int]],
        finished: Sequence[WorkerEntry],
    ) -> None:
        """Write acknowledgements and answers atomically; acknowledgements first, because they free memory.

        Args:
            messages: answers per client, in order.
            done: answered call ids of unfinished entries, by ref.
            finished: entries to acknowledge.
        """
        commands: list[tuple[Any, ...]] = []
        for flavour, stream_ids in split_refs(entry.ref for entry in finished).items():
            for start in range(0, len(stream_ids), MOST_IDS):
                ids = stream_ids[start : start + MOST_IDS]
                commands.append(("XACK", self.key("calls", flavour), GROUP, *ids))
                commands.append(("XDEL", self.key("calls", flavour), *ids))
        commands += [("DEL", self.key("done", entry.ref)) for entry in finished if entry.partial]
        commands += [("UNLINK", self.key("pieces", entry.chunks)) for entry in finished if entry.chunks]
        for client, answers in messages.items():
            key = self.key("reply", client)
            commands += [("XADD", key, "*", "answers", one.blob, "pieces", one.chunks) for one in answers]
            commands.append(("EXPIRE", key, REPLY_TTL_S))
        for ref, answered in done.items():
            packed = b"".join(_DONE.pack(call_id) for call_id in answered)
            commands.append(("APPEND", self.key("done", ref), packed))
            commands.append(("EXPIRE", self.key("done", ref), DONE_TTL_S))
        counted = [part for command in commands for part in (len(command), *command)]
        await with_timeout(self.redis.eval(STEP, 0, *counted))

    async def heartbeat(self, lease_end_s: float, held: Iterable[str]) -> tuple[float, set[str]]:
        """Renew the lease and the claims. Return (Redis's clock, the refs of `held` that Redis still has)."""
        by_flavour = split_refs(held)
        async with self.redis.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.zadd(self.key("workers"), {encode_worker(self.info): lease_end_s})
            pipe.zremrangebyscore(self.key("workers"), "-inf", lease_end_s - KEY_TTL_S)
            pipe.expire(self.key("workers"), KEY_TTL_S)
            for flavour in self.info.flavours:
                pipe.expire(self.key("calls", flavour), KEY_TTL_S)
            for flavour, ids in by_flavour.items():
                pipe.xclaim(self.key("calls", flavour), GROUP, self.info.name, 0, ids, justid=True)
            replies = await with_timeout(pipe.execute())
        seconds, microseconds = replies[0]
        claimed = {
            make_ref(flavour, stream_id.decode())
            for flavour, ids in zip(by_flavour, replies[4 + len(self.info.flavours) :], strict=True)
            for stream_id in ids
        }
        return seconds + microseconds / 1e6, claimed

    async def forget_consumers(self) -> None:
        """Remove consumers that are long gone and have no pending entries."""
        for flavour in self.info.flavours:
            key = self.key("calls", flavour)
            for consumer in await with_timeout(self.redis.xinfo_consumers(key, GROUP)):
                if consumer["pending"] == 0 and consumer["idle"] > FORGET_IDLE_S * 1000:
                    await with_timeout(self.redis.eval(FORGET_CONSUMER, 1, key, GROUP, consumer["name"]))

    async def leave(self, held: Mapping[str, int]) -> None:
        """Return the held entries, so that other workers need not wait for this one to become idle.

        held: delivery counts by ref. This worker did not die, so its own delivery does not count.
        """
        await with_timeout(self.redis.zrem(self.key("workers"), encode_worker(self.info)))
        for ref, deliveries in held.items():
            ((flavour, ids),) = split_refs([ref]).items()
            await with_timeout(
                self.redis.xclaim(
                    self.key("calls", flavour),
                    GROUP,
                    HANDED_BACK,
                    0,
                    ids,
                    idle=HANDED_BACK_IDLE_MS,
                    retrycount=deliveries - 1,
                    justid=True,
                )
            )
        for flavour in self.info.flavours:
            key = self.key("calls", flavour)
            await with_timeout(self.redis.eval(FORGET_CONSUMER, 1, key, GROUP, self.info.name))


def _delivery(flavour: str, stream_id: bytes, fields: Mapping[bytes, bytes], deliveries: int) -> WorkerEntry:
    return WorkerEntry(
        flavour=flavour,
        stream_id=stream_id.decode(),
        client=text_field(fields, b"client"),
        blob=fields.get(b"calls", b""),
        chunks=text_field(fields, b"pieces"),
        deliveries=deliveries,
    )
