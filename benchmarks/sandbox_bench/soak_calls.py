"""The kinds of calls of the soak, each with the answer it must give."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rocstar.sandbox.types import (
    ExecRequest,
    ExecResult,
    Limits,
    SandboxError,
    SessionLost,
    SessionSandbox,
    Status,
)

TIGHT = Limits(memory_bytes=64 << 20, output_bytes=4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """weight: relative frequency. check(pool, nonce, rng): runs the call and returns None if all was as it
    must be, else what was not."""

    name: str
    weight: float
    check: Callable[[SessionSandbox, int, random.Random], Awaitable[str | None]]
    flavour: str = "stdlib"


def _unlike(result: ExecResult, status: Status, stdout: str | None) -> str | None:
    if result.status is not status or (stdout is not None and result.stdout.strip() != stdout):
        return f"{result.status} {result.stdout[:80]!r} {result.stderr[-200:]!r}"
    return None


def program(
    name: str,
    weight: float,
    code: str,
    status: Status,
    stdout: str | None = None,
    *,
    limits: Limits = TIGHT,
    flavour: str = "stdlib",
) -> Kind:
    """One program; NONCE in code and stdout stands for the number of the call."""

    async def check(pool: SessionSandbox, nonce: int, rng: random.Random) -> str | None:
        text = code.replace("NONCE", str(nonce))
        result = await pool.run(ExecRequest(code=text, limits=limits, flavour=flavour))
        return _unlike(result, status, stdout and stdout.replace("NONCE", str(nonce)))

    return Kind(name=name, weight=weight, check=check, flavour=flavour)


async def _session(pool: SessionSandbox, nonce: int, rng: random.Random) -> str | None:
    session = await pool.open_session(limits=TIGHT)
    try:
        wrong = _unlike(await session.run(f"x = {nonce}"), Status.OK, "")
        wrong = wrong or _unlike(await session.run("1 / 0"), Status.ERROR, "")
        branch = await session.branch()
        try:
            wrong = wrong or _unlike(await branch.run("x += 1; print(x)"), Status.OK, str(nonce + 1))
        finally:
            await branch.close()
        return wrong or _unlike(await session.run("print(x)"), Status.OK, str(nonce))
    except SessionLost as error:
        return f"lost: {error.reason}"
    finally:
        await session.close()


async def _dying_session(pool: SessionSandbox, nonce: int, rng: random.Random) -> str | None:
    session = await pool.open_session(limits=TIGHT)
    result = await session.run("import os; os._exit(3)")
    if result.exit_code != 3:
        return f"exit code {result.exit_code}"
    try:
        await session.run("print(1)")
    except SessionLost:
        return None
    finally:
        await session.close()
    return "a session answered after its interpreter had exited"


async def _cancelled(pool: SessionSandbox, nonce: int, rng: random.Random) -> str | None:
    call = asyncio.ensure_future(pool.run(ExecRequest(code="import time; time.sleep(9)", limits=TIGHT)))
    await asyncio.sleep(rng.uniform(0, 0.02))
    call.cancel()
    try:
        return f"a cancelled call gave {(await call).status}"
    except asyncio.CancelledError:
        return None


async def _deadline(pool: SessionSandbox, nonce: int, rng: random.Random) -> str | None:
    deadline = asyncio.get_running_loop().time() + 0.03
    try:
        await pool.run(ExecRequest(code="import time; time.sleep(9)", limits=TIGHT), deadline=deadline)
    except SandboxError as error:
        return None if error.kind == "deadline" else f"{error.kind}: {error}"
    return "a call outlived its deadline"


async def _batch(pool: SessionSandbox, nonce: int, rng: random.Random) -> str | None:
    """Half of the batch is closed early: what still runs must be killed."""
    requests = [ExecRequest(code=f"print({nonce}, {index})", limits=TIGHT) for index in range(8)]
    stop_at = 4 if nonce % 2 else 8
    seen: set[int] = set()
    outcomes = pool.run_batch(requests)
    async for index, outcome in outcomes:
        if not isinstance(outcome, ExecResult):
            return f"{outcome.kind}: {outcome}"
        if index in seen or outcome.stdout != f"{nonce} {index}\n":
            return f"answer {index} of a batch: {outcome.stdout!r}"
        seen.add(index)
        if len(seen) == stop_at:
            break
    close = getattr(outcomes, "aclose", None)
    if close is not None:
        await close()
    return None if len(seen) == stop_at else f"{len(seen)} answers of {stop_at}"


_FILES = "from pathlib import Path\nPath('a.txt').write_text('NONCE')\nprint(Path('a.txt').read_text())"
_THREADS = (
    "import threading\nout = []\nt = threading.Thread(target=lambda: out.append(NONCE))\n"
    "t.start(); t.join(); print(out[0])"
)
_SYMPY = "from sympy import symbols, integrate\nx = symbols('x')\nprint(integrate(x**2, x), NONCE)"

KINDS = (
    program("ok", 55, "print(NONCE)", Status.OK, "NONCE"),
    program("value", 5, "NONCE", Status.OK, ""),
    program("error", 8, "print(NONCE)\n1 / 0", Status.ERROR, "NONCE"),
    program("syntax error", 2, "def f(:", Status.ERROR, ""),
    program("exit code", 2, "import sys; print(NONCE); sys.exit(7)", Status.ERROR, "NONCE"),
    program("timeout", 2, "import time; time.sleep(9)", Status.TIMEOUT, limits=Limits(wall_s=0.05)),
    program("busy timeout", 0.3, "while True: pass", Status.TIMEOUT, limits=Limits(wall_s=0.05)),
    program("memory at once", 2, "x = bytearray(1 << 40)", Status.MEMORY_LIMIT, limits=TIGHT),
    program(
        "memory bit by bit", 0.3, "x = []\nwhile True: x.append(bytearray(1 << 20))", Status.MEMORY_LIMIT
    ),
    program("output flood", 2, "while True: print('x' * 4096)", Status.OUTPUT_LIMIT),
    program("long output", 2, "print('é' * 3000)", Status.OK),
    program("no UTF-8", 1, "import os; os.write(1, bytes(range(128, 256)))", Status.OK),
    program("crash", 1, "import os; os.kill(os.getpid(), 11)", Status.SIGNALED),
    program("denied", 1, "import os; os.fork()", Status.ERROR),
    program("files", 2, _FILES, Status.OK, "NONCE"),
    program("threads", 1, _THREADS, Status.OK, "NONCE"),
    program("sympy", 2, _SYMPY, Status.OK, "x**3/3 NONCE", limits=Limits(), flavour="numeric"),
    Kind(name="session of 4 cells and a branch", weight=3, check=_session),
    Kind(name="session that dies", weight=0.5, check=_dying_session),
    Kind(name="cancelled", weight=4, check=_cancelled),
    Kind(name="past its deadline", weight=1, check=_deadline),
    Kind(name="batch of 8", weight=3, check=_batch),
)


class Caller:
    """Runs kinds against a pool, at most `in_flight` at a time, and collects what was wrong."""

    def __init__(self, pool: SessionSandbox, in_flight: int) -> None:
        self._pool = pool
        self._room = asyncio.Semaphore(in_flight)
        self.calls = 0
        self.by_kind: Counter[str] = Counter()
        self.wrong: list[tuple[str, str]] = []

    async def chunk(self, kinds: Sequence[Kind], rng: random.Random) -> None:
        async with asyncio.TaskGroup() as group:
            for kind in kinds:
                await self._room.acquire()
                self.calls += 1
                self.by_kind[kind.name] += 1
                group.create_task(self._one(kind, self.calls, rng))

    async def _one(self, kind: Kind, nonce: int, rng: random.Random) -> None:
        try:
            wrong = await kind.check(self._pool, nonce, rng)
            if wrong is not None:
                self.wrong.append((kind.name, wrong))
        except SandboxError as error:
            self.wrong.append((kind.name, f"SandboxError {error.kind}: {error}"))
        finally:
            self._room.release()

    async def print_one(self) -> bool:
        result = await self._pool.run(ExecRequest(code="print(1)"))
        return result.stdout == "1\n"
