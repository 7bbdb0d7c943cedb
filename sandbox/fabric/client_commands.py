"""The Redis commands of a client. Every method raises one of `REDIS_ERRORS` if its command fails."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocstar.sandbox.fabric.redis_connection import (
    BLOCK_MS,
    Keys,
    make_ref,
    split_refs,
    with_timeout,
)
from rocstar.sandbox.fabric.wire import WorkerInfo, decode_workers

LEASE_S = 30
"""Seconds without renewal after which a client counts as dead and its calls are no longer run."""

REPLY_TTL_S = 120
"""Seconds after which the answers to a client expire."""

CHUNKS_TTL_S = 120
"""Seconds after which the chunks of an entry expire if its client does not renew them."""

READ_COUNT = 16

NO_BOUND = -1

ENQUEUE = """
local max, ids = tonumber(ARGV[1]), {}
for i = 3, #ARGV, 2 do
    if max >= 0 and redis.call('XLEN', KEYS[1]) >= max then break end
    local fields = {'client', ARGV[2], 'calls', ARGV[i], 'pieces', ARGV[i + 1]}
    ids[#ids + 1] = redis.call('XADD', KEYS[1], '*', unpack(fields))
end
redis.call('EXPIRE', KEYS[1], 86400)
return ids
"""
"""KEYS: stream. ARGV: the maximum length of the stream or -1, client, and for each entry its message and the
name of its chunks or "". Returns the ids of the accepted entries."""

AUDIT = """
local last, missing = '0-0', {}
local info = redis.pcall('XINFO', 'STREAM', KEYS[1])
if not info.err then
    for i = 1, #info, 2 do
        if info[i] == 'last-generated-id' then last = info[i + 1] end
    end
end
for i = 1, #ARGV do
    if #redis.call('XRANGE', KEYS[i + 1], ARGV[i], ARGV[i]) == 0 then missing[#missing + 1] = i end
end
return {last, missing}
"""
"""KEYS: reply stream, then a stream per entry. ARGV: the entries' ids. Returns [newest id of the reply
stream, positions of the missing entries, from 1]. A missing entry was answered at or before that id, or
lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricMessage:
    """blob: JSON. chunks: the name of the message's chunks, or ""."""

    blob: bytes
    chunks: str = ""


@dataclass(eq=False)
class ClientCommands:
    redis: Any  # redis-py's annotations differ from release to release
    keys: Keys
    client: str

    async def server_s(self) -> float:
        seconds, microseconds = await with_timeout(self.redis.time())
        return float(seconds + microseconds / 1e6)

    async def enqueue(self, flavour: str, entries: Sequence[FabricMessage], *, longest: int) -> list[str]:
        """Append entries and return the refs of those accepted: the first ones, up to a stream length of
        `longest` (or NO_BOUND)."""
        key = self.keys.calls(flavour)
        sent = [part for entry in entries for part in (entry.blob, entry.chunks)]
        ids = await with_timeout(self.redis.eval(ENQUEUE, 1, key, longest, self.client, *sent))
        return [make_ref(flavour, stream_id.decode()) for stream_id in ids]

    async def delete(self, refs: Iterable[str]) -> None:
        """Delete entries from their streams; a worker that runs one notices at its next heartbeat."""
        for flavour, ids in split_refs(refs).items():
            await with_timeout(self.redis.xdel(self.keys.calls(flavour), *ids))

    async def read(self, cursor: str) -> list[tuple[str, FabricMessage]]:
        """Return (id, message) pairs after `cursor` in the reply stream; wait up to `BLOCK_MS` for the
        first."""
        streams = await with_timeout(
            self.redis.xread({self._reply: cursor}, count=READ_COUNT, block=BLOCK_MS)
        )
        return [
            (
                stream_id.decode(),
                FabricMessage(blob=fields.get(b"answers", b""), chunks=text_field(fields, b"pieces")),
            )
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
            pipe.set(self.keys.client(self.client), 1, ex=LEASE_S, get=True)
            pipe.expire(self._reply, REPLY_TTL_S)
            pipe.xtrim(self._reply, minid=cursor, approximate=False)
            pipe.zrange(self.keys.workers, f"({server_s}", "+inf", byscore=True)
            for name in chunks:
                pipe.expire(self.keys.chunks(name), CHUNKS_TTL_S)
            (seconds, microseconds), lease, _, _, members, *_ = await with_timeout(pipe.execute())
        return seconds + microseconds / 1e6, lease is not None, decode_workers(members)

    async def audit(self, refs: Sequence[str]) -> tuple[str, list[str]]:
        """Return (newest id of the reply stream, or 0-0; the entries that Redis no longer has)."""
        entries = [(flavour, ids[0]) for ref in refs for flavour, ids in split_refs([ref]).items()]
        keys = [self._reply, *(self.keys.calls(flavour) for flavour, _ in entries)]
        newest, missing = await with_timeout(
            self.redis.eval(AUDIT, len(keys), *keys, *(stream_id for _, stream_id in entries))
        )
        return newest.decode(), [refs[number - 1] for number in missing]

    async def leave(self) -> None:
        await with_timeout(self.redis.delete(self._reply, self.keys.client(self.client)))

    @property
    def _reply(self) -> str:
        return self.keys.reply(self.client)


def text_field(fields: Mapping[bytes, bytes], name: bytes) -> str:
    return fields.get(name, b"").decode("utf-8", "replace")
