"""The chunks of long messages in Redis: one hash per message, written and read about a MiB per command.

No client of Redis and no event loop is blocked by a long message, and each command has its own timeout.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from rocstar.sandbox.fabric.chunks import grouped
from rocstar.sandbox.fabric.redis_connection import Keys, RedisConnection, with_timeout


class ChunksMissing(Exception):
    """Redis does not have all chunks of a message."""


class ChunkStore:
    """Reads and writes chunks. Every method raises one of `REDIS_ERRORS` if the command fails."""

    def __init__(self, connection: RedisConnection, keys: Keys) -> None:
        self._redis: Any = connection.redis  # redis-py's annotations differ from release to release
        self._keys = keys

    async def put(self, name: str, chunks: Sequence[bytes], *, ttl_s: int) -> None:
        """Write the chunks; repeat the call after a failure."""
        key = self._keys.chunks(name)
        for numbers in grouped([len(chunk) for chunk in chunks]):
            async with self._redis.pipeline(transaction=True) as pipe:  # no hash without an expiry
                pipe.hset(key, mapping={str(number): chunks[number] for number in numbers})
                pipe.expire(key, ttl_s)
                await with_timeout(pipe.execute())

    async def get(self, name: str, sizes: Sequence[int]) -> list[bytes]:
        """Return the chunks of a message. Raise ChunksMissing if one is missing or has another size."""
        key, found = self._keys.chunks(name), []
        for numbers in grouped(sizes):
            given = await with_timeout(self._redis.hmget(key, [str(number) for number in numbers]))
            for number, chunk in zip(numbers, given, strict=True):
                if chunk is None or len(chunk) != sizes[number]:
                    raise ChunksMissing(f"Redis lost chunk {number} of {len(sizes)} of this message")
                found.append(chunk)
        return found

    async def forget(self, names: Iterable[str]) -> None:
        if keys := [self._keys.chunks(name) for name in names if name]:
            await with_timeout(self._redis.unlink(*keys))
