"""What a client says to Redis. Every method raises `REDIS_ERRORS` when Redis does not do it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocstar.sandbox.fabric import scripts
from rocstar.sandbox.fabric.link import BLOCK_MS, Keys, Link, limited, make_ref, split_refs
from rocstar.sandbox.fabric.workers import WorkerInfo, decode_workers

LEASE_S = 30
"""A client that has not renewed its lease this long is taken for dead: its calls are not run any more."""

REPLY_TTL_S = 120
"""How long the answers to a client outlive their writing."""

PIECES_TTL_S = 120
"""How long the pieces of an entry outlive its client."""

READ_COUNT = 16

NO_BOUND = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricMessage:
    """blob: of JSON. pieces: the name of those beside it, or nothing."""

    blob: bytes
    pieces: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """server_s: Redis's clock. known: Redis still had this client's lease."""

    server_s: float
    known: bool
    workers: list[WorkerInfo]


class ClientCommands:
    def __init__(self, link: Link, keys: Keys, client: str) -> None:
        self._redis: Any = link.redis  # redis-py's annotations differ from release to release
        self._keys = keys
        self._client = client

    async def server_s(self) -> float:
        seconds, microseconds = await limited(self._redis.time())
        return float(seconds + microseconds / 1e6)

    async def enqueue(self, flavour: str, entries: Sequence[FabricMessage], *, longest: int) -> list[str]:
        """Refs of the entries that had room: the first ones. `longest`: bound of the stream, or NO_BOUND."""
        key = self._keys.calls(flavour)
        sent = [part for entry in entries for part in (entry.blob, entry.pieces)]
        ids = await limited(self._redis.eval(scripts.ENQUEUE, 1, key, longest, self._client, *sent))
        return [make_ref(flavour, stream_id.decode()) for stream_id in ids]

    async def delete(self, refs: Iterable[str]) -> None:
        """Takes entries out of their streams; a worker that runs one notices at its next heartbeat."""
        for flavour, ids in split_refs(refs).items():
            await limited(self._redis.xdel(self._keys.calls(flavour), *ids))

    async def read(self, cursor: str) -> list[tuple[str, FabricMessage]]:
        """(id, message) of what follows `cursor` in the reply stream; waits for it up to `BLOCK_MS`."""
        streams = await limited(self._redis.xread({self._reply: cursor}, count=READ_COUNT, block=BLOCK_MS))
        return [
            (stream_id.decode(), _message(fields))
            for _, messages in streams
            for stream_id, fields in messages
        ]

    async def keep_up(self, cursor: str, server_s: float, pieces: Iterable[str]) -> Upkeep:
        """Renews the lease and the `pieces` of entries, forgets answers before `cursor`, counts the workers
        alive at `server_s`."""
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.set(self._keys.client(self._client), 1, ex=LEASE_S, get=True)
            pipe.expire(self._reply, REPLY_TTL_S)
            pipe.xtrim(self._reply, minid=cursor, approximate=False)
            pipe.zrange(self._keys.workers, f"({server_s}", "+inf", byscore=True)
            for name in pieces:
                pipe.expire(self._keys.pieces(name), PIECES_TTL_S)
            (seconds, microseconds), lease, _, _, members, *_ = await limited(pipe.execute())
        return Upkeep(
            server_s=seconds + microseconds / 1e6,
            known=lease is not None,
            workers=decode_workers(members),
        )

    async def audit(self, refs: Sequence[str]) -> tuple[str, list[str]]:
        """(newest id of the reply stream, or 0-0; the entries that Redis no longer has)"""
        places = [(flavour, ids[0]) for ref in refs for flavour, ids in split_refs([ref]).items()]
        keys = [self._reply, *(self._keys.calls(flavour) for flavour, _ in places)]
        newest, missing = await limited(
            self._redis.eval(scripts.AUDIT, len(keys), *keys, *(stream_id for _, stream_id in places))
        )
        return newest.decode(), [refs[number - 1] for number in missing]

    async def queue_lengths(self, flavours: Iterable[str]) -> Mapping[str, int]:
        return {name: await limited(self._redis.xlen(self._keys.calls(name))) for name in sorted(flavours)}

    async def leave(self) -> None:
        await limited(self._redis.delete(self._reply, self._keys.client(self._client)))

    @property
    def _reply(self) -> str:
        return self._keys.reply(self._client)


def _message(fields: Mapping[bytes, bytes]) -> FabricMessage:
    """Of whatever was written there."""
    return FabricMessage(
        blob=fields.get(b"answers", b""), pieces=fields.get(b"pieces", b"").decode("utf-8", "replace")
    )
