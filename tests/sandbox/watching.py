"""What tests see of a pool's processes, and how they wait for it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from rocstar.sandbox import proctree
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


def started_by(pool: SandboxPool) -> list[int]:
    """Pids of the programs and of all that they started, at any depth."""
    known = own_processes(pool)
    return [one.pid for one in proctree.tree([pool.supervisor_pid]) if one.pid not in known]


def is_alive(pid: int) -> bool:
    """False of a process that has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ended(pid: int) -> bool:
    """And was reaped."""
    return not Path(f"/proc/{pid}").exists()


async def until(condition: Callable[[], object]) -> None:
    """Lets everything else run until `condition` holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)
