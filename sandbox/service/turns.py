"""Work in many small pieces that lets the loop go on in between.

A batch may have 65,536 calls. What each of them takes is microseconds, but where nothing is waited for
between them (a refusal is written and the client has room for it) nobody else has a turn until the last.
"""

import asyncio
import time
from collections.abc import Callable

PIECE_S = 0.0005
"""A call of another waits for so much several times: as it comes, when it is sent, when it is answered."""


class Turns:
    """Invariant: between two returns of `pause` that did not wait the loop was held for less than `piece_s`,
    besides the one piece that went beyond it."""

    def __init__(self, piece_s: float = PIECE_S, clock: Callable[[], float] = time.perf_counter) -> None:
        self._piece_s = piece_s
        self._clock = clock
        self._since_s = clock()

    async def pause(self) -> None:
        """After each piece: gives others a turn if it is time."""
        if self._clock() - self._since_s >= self._piece_s:
            await asyncio.sleep(0)
            self._since_s = self._clock()
