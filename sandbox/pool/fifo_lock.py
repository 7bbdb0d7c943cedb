"""A first-in, first-out lock for one holder or several.

    take --> free: returns without waiting
       |     held: waits until a holder gives it up, or the deadline
       v
     give --> passes it to the first waiter

`asyncio.Lock` is briefly free between two holders, so a caller cannot know whether it will wait and must set
up a deadline each time: a third of the overhead of a short cell. `asyncio.Semaphore` scans all waiters twice
to take a free place.
"""

import asyncio
from collections import OrderedDict


class FifoLock:
    """Invariants: at most `number` holders; free only while there are no waiters. free: the number of free
    places."""

    __slots__ = ("_waiting", "free")

    def __init__(self, number: int = 1) -> None:
        self.free = number
        # Ordered, with removal in constant time: thousands may be cancelled, the last first.
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    def try_take(self) -> bool:
        """Take the lock if it is free, without waiting. Return True if taken."""
        if not self.free:
            return False
        self.free -= 1
        return True

    async def take(self, deadline: float | None) -> None:
        """Wait for the lock. Raise TimeoutError at `deadline`, an absolute `loop.time()`."""
        if self.try_take():
            return
        mine = asyncio.get_running_loop().create_future()
        self._waiting[mine] = None
        try:
            async with asyncio.timeout_at(deadline):
                await mine
        except BaseException:  # timeout or cancellation
            if mine.done() and not mine.cancelled():  # the lock arrived meanwhile
                self.give()
            else:  # `give` may have skipped it
                self._waiting.pop(mine, None)
            raise

    def give(self) -> None:
        """Release the lock to the first waiter."""
        while self._waiting:
            following, _ = self._waiting.popitem(last=False)
            if not following.done():
                following.set_result(None)
                return
        self.free += 1
