"""The Redis commands of a client. Every method raises one of `REDIS_ERRORS` if its command fails."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocstar.sandbox.fabric import scripts
from rocstar.sandbox.fabric.redis_connection import (
    BLOCK_MS,
    Keys,
    RedisConnection,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricMessage:
    """blob: JSON. chunks: the name of the message's chunks, or ""."""

    blob: bytes
    chunks: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """server_s: Redis's clock. known: True if Redis still had this client's lease."""

    server_s: float
    known: bool
    workers: list[WorkerInfo]


class ClientCommands:
    def __init__(self, connection: RedisConnection, keys: Keys, client: str) -> None:
        self._redis: Any = connection.redis  # redis-py's annotations differ from release to release
        self._keys = keys
        self._client = client

    async def server_s(self) -> float:
        seconds, microseconds = await with_timeout(self._redis.time())
        return float(seconds + microseconds / 1e6)

    async def enqueue(self, flavour: str, entries: Sequence[FabricMessage], *, longest: int) -> list[str]:
        """Append entries and return the refs of those accepted: the first ones, up to a stream length of
        `longest` (or NO_BOUND)."""
        key = self._keys.calls(flavour)
        sent = [part for entry in entries for part in (entry.blob, entry.chunks)]
        ids = await with_timeout(self._redis.eval(scripts.ENQUEUE, 1, key, longest, self._client, *sent))
        return [make_ref(flavour, stream_id.decode()) for stream_id in ids]

    async def delete(self, refs: Iterable[str]) -> None:
        """Delete entries from their streams; a worker that runs one notices at its next heartbeat."""
        for flavour, ids in split_refs(refs).items():
            await with_timeout(self._redis.xdel(self._keys.calls(flavour), *ids))

    async def read(self, cursor: str) -> list[tuple[str, FabricMessage]]:
        """Return (id, message) pairs after `cursor` in the reply stream; wait up to `BLOCK_MS` for the
        first."""
        streams = await with_timeout(
            self._redis.xread({self._reply: cursor}, count=READ_COUNT, block=BLOCK_MS)
        )
        return [
            (stream_id.decode(), _message(fields))
            for _, messages in streams
            for stream_id, fields in messages
        ]

    async def keep_up(self, cursor: str, server_s: float, chunks: Iterable[str]) -> Upkeep:
        """Renew the lease and the `chunks` of entries, trim answers before `cursor`, list the workers that
        are alive at `server_s`."""
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.set(self._keys.client(self._client), 1, ex=LEASE_S, get=True)
            pipe.expire(self._reply, REPLY_TTL_S)
            pipe.xtrim(self._reply, minid=cursor, approximate=False)
            pipe.zrange(self._keys.workers, f"({server_s}", "+inf", byscore=True)
            for name in chunks:
                pipe.expire(self._keys.chunks(name), CHUNKS_TTL_S)
            (seconds, microseconds), lease, _, _, members, *_ = await with_timeout(pipe.execute())
        return Upkeep(
            server_s=seconds + microseconds / 1e6,
            known=lease is not None,
            workers=decode_workers(members),
        )

    async def audit(self, refs: Sequence[str]) -> tuple[str, list[str]]:
        """Return (newest id of the reply stream, or 0-0; the entries that Redis no longer has)."""
        entries = [(flavour, ids[0]) for ref in refs for flavour, ids in split_refs([ref]).items()]
        keys = [self._reply, *(self._keys.calls(flavour) for flavour, _ in entries)]
        newest, missing = await with_timeout(
            self._redis.eval(scripts.AUDIT, len(keys), *keys, *(stream_id for _, stream_id in entries))
        )
        return newest.decode(), [refs[number - 1] for number in missing]

    async def leave(self) -> None:
        await with_timeout(self._redis.delete(self._reply, self._keys.client(self._client)))

    @property
    def _reply(self) -> str:
        return self._keys.reply(self._client)


def _message(fields: Mapping[bytes, bytes]) -> FabricMessage:
    """Accept any fields: other clients may have written the message."""
    return FabricMessage(
        blob=fields.get(b"answers", b""), chunks=fields.get(b"pieces", b"").decode("utf-8", "replace")
    )
