"""End a stalled run, with the reason on the console and in the run directory.

waits of trajectories, learner, publish (waits.py) -> watchdog -> the oldest wait ends -> exit code 1
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from rocstar.engine.rollout.watchdog import StalledError, expire_oldest, watch
from rocstar.engine.waits import WaitBoard

REPORT = "logs/stalled.txt"


def stall_s(trajectory_timeout_s: float) -> float:
    """Return the time without progress that counts as a stall: longer than all deadlines of a trajectory."""
    return max(3600.0, 3 * trajectory_timeout_s)


@contextlib.asynccontextmanager
async def guarded(
    run_dir: Path,
    *,
    stall_s: float,
    note: Callable[[str], None],
    leave: Callable[[int], object] = os._exit,
    board: WaitBoard | None = None,
) -> AsyncIterator[WaitBoard]:
    """Watch the block. After `stall_s` without a change, end the oldest wait with a deadline. If still
    nothing changes, exit the process immediately with code 1: a thread stuck in a collective would block an
    orderly exit. Checkpoints are complete at any moment, and children end with the process.

    board: records the block's waits; by default one on the loop's clock.
    """
    if board is None:
        board = WaitBoard(asyncio.get_running_loop().time)

    def tell(report: str) -> None:
        path = run_dir / REPORT
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(report + "\n")
        first = report.strip().splitlines()
        note(f"{' / '.join(first[:4])}; stacks are in {path}")

    async def guard() -> None:
        try:
            await watch(board, stall_s=stall_s, remedies=[expire_oldest], tell=tell)
        except StalledError:
            note("nothing moves and nothing is left to try; go on with --resume")
            sys.stderr.flush()
            leave(1)

    dog = asyncio.create_task(guard(), name="watchdog")
    try:
        with board.installed():
            yield board
    finally:
        dog.cancel()
        await asyncio.wait([dog])
