"""The pieces of long messages in Redis: a hash for each message, no command of which carries much more than a
MiB. So nobody waits for a long message, in Redis or in a node's loop, and a time limit is one of silence."""

from collections.abc import Iterable, Sequence
from typing import Any

from rocstar.sandbox.fabric.link import Keys, Link, limited
from rocstar.sandbox.fabric.pieces import grouped


class PiecesGone(Exception):
    """Redis has not, or no longer, all that a message names."""


class StoredPieces:
    """Every method raises `REDIS_ERRORS` when Redis does not do it."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._redis: Any = link.redis  # redis-py's annotations differ from release to release
        self._keys = keys

    async def put(self, name: str, pieces: Sequence[bytes], *, ttl_s: int) -> None:
        """The same again, when it was cut off."""
        key = self._keys.pieces(name)
        for numbers in grouped([len(piece) for piece in pieces]):
            async with self._redis.pipeline(transaction=True) as pipe:  # none without its end
                pipe.hset(key, mapping={str(number): pieces[number] for number in numbers})
                pipe.expire(key, ttl_s)
                await limited(pipe.execute())

    async def get(self, name: str, sizes: Sequence[int]) -> list[bytes]:
        """Raises PiecesGone."""
        key, found = self._keys.pieces(name), []
        for numbers in grouped(sizes):
            given = await limited(self._redis.hmget(key, [str(number) for number in numbers]))
            for number, piece in zip(numbers, given, strict=True):
                if piece is None or len(piece) != sizes[number]:
                    raise PiecesGone(f"Redis has lost a piece of this message ({number} of {len(sizes)})")
                found.append(piece)
        return found

    async def forget(self, names: Iterable[str]) -> None:
        if keys := [self._keys.pieces(name) for name in names if name]:
            await limited(self._redis.unlink(*keys))
