"""What tests see of a pool's processes, and how they wait for it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from rocstar.sandbox.pool.pool import SandboxPool

from ..patience import PATIENCE_S


def children_of(pid: int) -> set[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return {int(child) for child in text.split()}


def starter_of(pool: SandboxPool) -> int:
    """Pid of the process that starts the supervisor's zygotes: its first child."""
    pid = pool.supervisor_pid
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def own_processes(pool: SandboxPool) -> set[int]:
    """Pids of the supervisor, its starter and all zygotes that it had."""
    return {pool.supervisor_pid, starter_of(pool), *(pid for pids in pool.zygotes.values() for pid in pids)}


def programs_of(pool: SandboxPool) -> set[int]:
    """Pids of what runs programs and sessions: all other children of the supervisor."""
    return children_of(pool.supervisor_pid) - own_processes(pool)


def ended(pid: int) -> bool:
    """And was reaped."""
    return not Path(f"/proc/{pid}").exists()


async def until(condition: Callable[[], object]) -> None:
    """Lets everything else run until `condition` holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)
