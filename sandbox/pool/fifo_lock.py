"""One at a time, or so many, in the order in which they came.

    take --> it is free: at once, and nothing was waited for
       |     it is taken: until whoever has it gives it up, or the deadline
       v
     give --> the next that waits has it

`asyncio.Lock` is free for a moment between two that want it, so nobody can tell before whether it will wait,
and a deadline would be set up for each: a third of what a short cell costs on its way to the interpreter.
`asyncio.Semaphore` looks through all that wait, twice, to take what is free.
"""

import asyncio
from collections import OrderedDict


class FifoLock:
    """Invariants: at most `number` have it; it is free only while nobody waits. `free`: for how many."""

    __slots__ = ("_waiting", "free")

    def __init__(self, number: int = 1) -> None:
        self.free = number
        # In order, each found at once: thousands may go away, the last first.
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    def try_take(self) -> bool:
        """Whether the caller has it now, for it was free."""
        if not self.free:
            return False
        self.free -= 1
        return True

    async def take(self, deadline: float | None) -> None:
        """Returns when the caller has it. `deadline`: absolute `loop.time()`. Raises TimeoutError then."""
        if self.try_take():
            return
        mine = asyncio.get_running_loop().create_future()
        self._waiting[mine] = None
        try:
            async with asyncio.timeout_at(deadline):
                await mine
        except BaseException:  # too late, or cancelled
            if mine.done() and not mine.cancelled():  # it was given at the same moment
                self.give()
            else:  # `give` may have passed it over
                self._waiting.pop(mine, None)
            raise

    def give(self) -> None:
        """Whoever has it gives it up."""
        while self._waiting:
            following, _ = self._waiting.popitem(last=False)
            if not following.done():
                following.set_result(None)
                return
        self.free += 1
