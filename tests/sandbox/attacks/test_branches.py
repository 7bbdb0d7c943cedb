"""Nothing passes between an interpreter of the notebook tool and its branches (`rl.fork`), nor between two branches.

The victim runs `leaves` behind the fork, the attacker then runs `takes` with the victim's facts. `takes` must not
print the victim's secret, and `stays` must hold in the victim. Where one interpreter is both, `takes` must print it.
"""

from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from rocstar.engine.tools.jupyter import Interpreter
from rocstar.sandbox.attacks.pair import LIMITS, STDLIB, output_of
from rocstar.sandbox.pool.pool import SandboxPool

COMMON = """
import ctypes, gc, mmap, os, random, signal, socket
libc = ctypes.CDLL(None, use_errno=True)
common = open("common", "w+")
shared = mmap.mmap(-1, 4096)
ends, pipe = socket.socketpair(), os.pipe()
os.set_blocking(pipe[0], False)
ends[1].setblocking(False)
received = []
signal.signal(signal.SIGUSR1, lambda *_: received.append("swordfish"))
def attempt(*takes):
    for take in takes:
        try:
            print(take())
        except OSError:
            pass
def opened(path, at=0):
    with open(path, "r+b", buffering=0) as file:
        file.seek(at)
        found = file.read(9)
        file.seek(at)
        file.write(b"pikestaff")
        return found
def from_memory(call, pid, at):
    own = ctypes.create_string_buffer(b"pikestaff")
    mine = (ctypes.c_size_t * 2)(ctypes.addressof(own), 9)
    call(pid, mine, 1, (ctypes.c_size_t * 2)(at, 9), 1, 0)
    return own.value
"""
"""The cell before the fork: every branch runs it again."""


class Attempt(NamedTuple):
    """Cells of the victim and of the attacker, which has the value of `leaves` as `facts`."""

    leaves: str
    takes: str
    stays: str = "True"


FILTERED = "memory by a system call"
"""The filter ends who asks, also about itself."""

ATTEMPTS = {
    "files": Attempt(
        "open('own', 'w').write(secret), common.write(secret), common.flush(); os.getcwd()",
        "attempt(lambda: opened('own'), lambda: opened(facts + '/own'), lambda: opened('common'))",
        "open('own').read() == open('common').read() == secret",
    ),
    "variables": Attempt(
        "random.left = secret",
        "print(globals().get('secret'), getattr(random, 'left', ''))\n"
        "print([each['secret'] for each in gc.get_objects() if type(each) is dict and 'secret' in each])\n"
        "secret = random.left = 'pikestaff'",
        "random.left == secret == 'swordfish'",
    ),
    "environment": Attempt(
        "os.environ['LEFT'] = secret; os.getpid()",
        "attempt(lambda: os.environ.get('LEFT'), lambda: open(f'/proc/{facts}/environ').read())\n"
        "os.environ['LEFT'] = 'pikestaff'",
        "os.environ['LEFT'] == secret",
    ),
    "random stream": Attempt(
        "secret = repr(random.random()); state = random.getstate(); None",
        "print([random.random() for _ in range(9)])",
        "random.getstate() == state",
    ),
    "memory": Attempt(
        "left = ctypes.create_string_buffer(secret.encode()); os.getpid(), ctypes.addressof(left)",
        "attempt(lambda: opened(f'/proc/{facts[0]}/mem', facts[1]), lambda: opened('/proc/self/mem', facts[1]),\n"
        "    lambda: (libc.write(pipe[1], ctypes.c_void_p(facts[1]), 9), os.read(pipe[0], 9)))",
        "left.value == secret.encode()",
    ),
    FILTERED: Attempt(
        "left = ctypes.create_string_buffer(secret.encode()); os.getpid(), ctypes.addressof(left)",
        "attempt(lambda: from_memory(libc.process_vm_readv, *facts))",
        "left.value == secret.encode()",
    ),
    "signals": Attempt(
        "os.getpid()",
        "attempt(lambda: os.kill(facts, signal.SIGUSR1), lambda: received, lambda: os.killpg(facts, signal.SIGUSR1),\n"
        "    lambda: facts == os.getpid() or os.kill(facts, signal.SIGKILL),\n"
        "    lambda: signal.pidfd_send_signal(os.pidfd_open(facts), signal.SIGUSR1))",
        "not received",
    ),
    "descriptors": Attempt(
        "left = open('left', 'w+'); left.write(secret), left.flush(), os.unlink('left'); os.getpid(), left.fileno()",
        "attempt(lambda: os.pread(facts[1], 9, 0), lambda: os.pwrite(facts[1], b'pikestaff', 0),\n"
        "    lambda: opened('/proc/%d/fd/%d' % facts), lambda: libc.syscall(438, os.pidfd_open(facts[0]), facts[1]))",
        "os.pread(left.fileno(), 20, 0) == secret.encode()",
    ),
    "shared memory": Attempt(
        "shared[:9] = secret.encode()",
        "print(shared[:9]); shared[:9] = b'pikestaff'",
        "shared[:9] == secret.encode()",
    ),
    "sockets and pipes": Attempt(
        "ends[0].send(secret.encode()), os.write(pipe[1], secret.encode())",
        "attempt(lambda: ends[1].recv(9), lambda: os.read(pipe[0], 9))",
        "ends[1].recv(9) == os.read(pipe[0], 9) == secret.encode()",
    ),
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[SandboxPool]:
    async with SandboxPool((STDLIB,), max_live=3) as pool:
        yield pool


async def cell(interpreter: Interpreter, code: str, seed: int | None = None) -> tuple[str, str]:
    """Return the output and the value of a cell in the same interpreter as the one before."""
    ran = await interpreter.run(code, deadline=None, seed=seed)
    assert not ran.restarted and not ran.replayed, "the interpreter was lost"
    return output_of(code, ran.result), str(ran.result.value)


async def attack(
    attempt: Attempt, victim: Interpreter, attacker: Interpreter, seed: int | None = 2
) -> tuple[bool, bool]:
    """Return whether the attacker has the victim's secret, and whether the victim is as it was."""
    _, facts = await cell(victim, f"secret = 'swordfish'\n{attempt.leaves}", 1)
    _, secret = await cell(victim, "secret", 1)
    stolen, _ = await cell(attacker, f"facts = {facts}\n{attempt.takes}", seed)
    _, stays = await cell(victim, attempt.stays, 1)
    return secret.strip("'") in stolen, stays == "True"


@pytest.mark.parametrize("who", ["parent and branch", "branch and parent", "two branches"])
@pytest.mark.parametrize("name", ATTEMPTS)
@pytest.mark.asyncio(loop_scope="module")
async def test_nothing_passes_between_branches(pool: SandboxPool, name: str, who: str) -> None:
    parent = Interpreter(pool, flavour=STDLIB, limits=LIMITS, seed=7)
    await cell(parent, COMMON, 1)
    one, other = parent.branch(), parent.branch()
    victim, attacker = {
        "parent and branch": (parent, one),
        "branch and parent": (one, parent),
        "two branches": (one, other),
    }[who]
    assert await attack(ATTEMPTS[name], victim, attacker) == (False, True)
    for each in (parent, one, other):
        await each.close()


@pytest.mark.parametrize("name", [name for name in ATTEMPTS if name != FILTERED])
@pytest.mark.asyncio(loop_scope="module")
async def test_the_attempts_succeed_within_one_interpreter(pool: SandboxPool, name: str) -> None:
    """A random stream: in a branch that keeps its parent's."""
    one = Interpreter(pool, flavour=STDLIB, limits=LIMITS, seed=7)
    await cell(one, COMMON, 1)
    taken, _ = await attack(ATTEMPTS[name], one, one.branch() if name == "random stream" else one, None)
    assert taken
    await one.close()
