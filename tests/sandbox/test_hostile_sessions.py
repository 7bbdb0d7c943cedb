"""A session speaks with the supervisor over a socket of its own. Whatever it says there, it loses itself and
nobody else: no other session, no other process of the machine, no place of the pool."""

import asyncio
import os
import signal
import subprocess

import pytest

from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, Limits, SandboxError

from ..patience import PATIENCE_S
from .watching import ended, programs_of, until

HOSTILE = """
import array, ctypes, os, signal, socket, struct, time
control = socket.socket(fileno=os.dup(3))
def finish():
    control.send(struct.pack('=BiQI', 1, 0, 0, 0))
def branch_order():
    fds = array.array('i')
    fds.frombytes(control.recvmsg(100, 1000)[1][0][2])
    return fds
def branch_reply(code):
    control.send(struct.pack('=BiQI', 2, code, 0, 0))
def announce(control, pid):
    os.write(control, b'R' + struct.pack('=i', pid))
"""

UNTIED_BRANCH = """finish()
fds = branch_order()
number = 56 if os.uname().machine == 'x86_64' else 220
if ctypes.CDLL(None).syscall(number, 0x8000 | 0x01000000 | 17, 0, 0, 0, 0) == 0:
    announce(fds[3], os.getpid())
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    while True: time.sleep(600)
branch_reply(0)
time.sleep(600)
"""

HOSTILE_CELLS = {
    "speaks twice": "finish(); finish(); time.sleep(600)",
    "speaks nonsense": "os.write(3, b'\\xff' * 1000); time.sleep(600)",
    "promises more": "os.write(3, struct.pack('=BiQI', 1, 0, 0, 1 << 30)); time.sleep(600)",
    "closes its socket": "os.close(3); control.close(); time.sleep(600)",
    "shuts its socket": "control.shutdown(socket.SHUT_RDWR); time.sleep(600)",
    "names a stranger": "finish(); announce(branch_order()[3], {victim}); branch_reply(0); time.sleep(600)",
    "names the supervisor": "finish(); announce(branch_order()[3], {supervisor}); time.sleep(600)",
    "names another session": "finish(); announce(branch_order()[3], {other}); branch_reply(0); time.sleep(9)",
    "names itself": "finish(); announce(branch_order()[3], os.getpid()); branch_reply(0); time.sleep(600)",
    "claims a branch": "finish(); branch_order(); branch_reply(0); time.sleep(600)",
    "forks in secret": """finish()
fds = branch_order()
number = 56 if os.uname().machine == 'x86_64' else 220
if ctypes.CDLL(None).syscall(number, 0x8000 | 0x01000000 | 17, 0, 0, 0, 0) == 0:
    os.closerange(0, 200)
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    while True: time.sleep(600)
branch_reply(1)
time.sleep(600)
""",
}


@pytest.mark.parametrize("name", HOSTILE_CELLS)
async def test_a_hostile_session_loses_itself_and_nobody_else(name: str) -> None:
    with subprocess.Popen(["sleep", "600"]) as victim:  # noqa: ASYNC220
        async with SandboxPool(max_live=2) as pool:
            other = await pool.open_session()
            pid = (await other.run("import os; x = 2; os.getpid()")).value
            hostile = await pool.open_session(limits=Limits(wall_s=0.5))
            words = dict(victim=victim.pid, supervisor=pool.supervisor_pid, other=pid)
            cell = HOSTILE_CELLS[name]
            for word, number in words.items():
                cell = cell.replace("{" + word + "}", str(number))
            supervisor = pool.supervisor_pid
            try:
                await hostile.run(HOSTILE + cell)
                await hostile.branch()
            except SandboxError:
                pass
            await hostile.close()
            assert (await other.run("x")).value == "2"
            for _ in range(3):
                assert (await asyncio.wait_for(pool.run(ExecRequest(code="1")), PATIENCE_S)).value == "1"
            await until(lambda: len(programs_of(pool)) == 1)
            assert (pool.restarts, pool.supervisor_pid, victim.poll()) == (0, supervisor, None)
            survivors = {supervisor, *programs_of(pool)}
        assert not any(os.path.exists(f"/proc/{pid}") for pid in survivors)  # noqa: ASYNC240
        victim.kill()


async def test_no_branch_outlives_a_killed_supervisor() -> None:
    """A fork takes the death signal away: an honest branch asks for it again, a hostile one is none."""
    async with SandboxPool() as pool:
        honest = await pool.open_session()
        branch = await honest.branch()
        assert (await branch.run("1")).value == "1"
        hostile = await pool.open_session()
        await hostile.run(HOSTILE + UNTIED_BRANCH)
        with pytest.raises(SandboxError, match="outlive"):
            await asyncio.wait_for(hostile.branch(), PATIENCE_S)
        pids = programs_of(pool)
        assert len(pids) >= 3
        os.kill(pool.supervisor_pid, signal.SIGKILL)
        await until(lambda: all(map(ended, pids)))
