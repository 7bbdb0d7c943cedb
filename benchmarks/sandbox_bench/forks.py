"""CPU of a call through HTTP over that of a bare fork of a warm interpreter that runs the same program.

    rounds in turns:   batches of 64 through /v1/batch, two at a time      ->  CPU of the service's tree
                       batches of 64 to bare_fork.py, one each for two     ->  CPU of the two interpreters
                                                                               and their children

The fork confines nothing: it is the least that warm interpreters can cost. A warm interpreter has imported
the modules of the service's own for such a program; of that with and without the collector's objects frozen
the cheaper one is compared. Then the same once more with a busy loop on every core. A ratio is that of one
round; the median over rounds is quoted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from hogs import cores, taken
from report import claim, finish
from sandbox_bench.load import Load, drive, in_batches, summary
from sandbox_bench.programs import Program, nonced
from sandbox_bench.rocstar_service import ENVIRONMENT, Service, native_batch, service

from rocstar.sandbox.child.flavours import FLAVOURS

BATCH, LANES = 64, 2
CALLS = {"print": 2048, "sympy": 512}
BARS = {"print": 0.6, "sympy": 0.85}
FLAVOUR = {"print": "stdlib", "sympy": "numeric"}
START_TIMEOUT_S, ANSWER_TIMEOUT_S = 120.0, 120.0
LINE_BYTES = 1 << 24


@dataclass(frozen=True, kw_only=True)
class Warm:
    """The state of an interpreter before it forks."""

    name: str
    modules: tuple[str, ...] = ()
    warm_up: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    frozen: bool = False


def warm_as_served(kind: str) -> list[Warm]:
    """As the service's interpreters are before they fork for such a program, in two settings."""
    flavour = FLAVOURS[FLAVOUR[kind]]
    same = Warm(
        name="as the flavour", modules=flavour.modules, warm_up=flavour.warm_up, environment=dict(flavour.environment)
    )
    return [same, replace(same, name="as the flavour, frozen", frozen=True)]


class Forks:
    """Interpreters that fork for one program after the other; a batch goes to one that is free."""

    def __init__(self, processes: Sequence[asyncio.subprocess.Process]) -> None:
        self.pids = [process.pid for process in processes]
        self._free: asyncio.Queue[asyncio.subprocess.Process] = asyncio.Queue()
        for process in processes:
            self._free.put_nowait(process)

    async def run(self, programs: Sequence[Program]) -> list[str | None]:
        process = await self._free.get()
        assert process.stdin and process.stdout
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            process.stdin.write(json.dumps([program.code for program in programs]).encode() + b"\n")
            await process.stdin.drain()
            answer = await process.stdout.readline()
        self._free.put_nowait(process)
        printed: list[str | None] = json.loads(answer)
        return printed


@asynccontextmanager
async def forks(warm: Warm, lanes: int) -> AsyncIterator[Forks]:
    """`lanes` interpreters in this state. RuntimeError if one does not get warm."""
    script = Path(__file__).with_name("bare_fork.py")
    processes: list[asyncio.subprocess.Process] = []
    try:
        for _ in range(lanes):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, str(script), json.dumps(asdict(warm))),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LINE_BYTES,
                env=ENVIRONMENT,
            )
            processes.append(process)
        for process in processes:
            assert process.stdout
            async with asyncio.timeout(START_TIMEOUT_S):
                if await process.stdout.readline() != b"warm\n":
                    raise RuntimeError(f"no interpreter that is warm {warm.name!r}; see its error above")
        yield Forks(processes)
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("forks", help="CPU per call through HTTP over that of a bare fork, quiet and busy")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual number of calls")


async def of_forks(some: Forks, programs: Iterator[Program], calls: int) -> Load:
    batches = in_batches(programs, calls, BATCH)
    return await drive(some.run, batches, lanes=len(some.pids), roots=some.pids)


async def of_service(server: Service, programs: Iterator[Program], calls: int) -> Load:
    async with server.client() as client:
        batches = in_batches(programs, calls, BATCH)
        return await drive(partial(native_batch, client), batches, lanes=LANES, roots=[server.pid])


async def cheapest(kind: str, programs: Iterator[Program], calls: int) -> tuple[Warm, dict[str, float]]:
    """The setting of a warm interpreter with the least CPU per
    call, and what each took in ms."""
    took: dict[str, float] = {}
    settings = {warm.name: warm for warm in warm_as_served(kind)}
    for name, warm in settings.items():
        async with forks(warm, LANES) as some:
            await of_forks(some, programs, LANES * BATCH)
            took[name] = (await of_forks(some, programs, calls)).cpu_ms_per_call
    return settings[min(took, key=lambda name: took[name])], took


def ratio(ours: Sequence[Load], theirs: Sequence[Load]) -> float:
    """CPU per call over that of a fork: the median of the rounds' ratios."""
    return median([our.cpu_ms_per_call / their.cpu_ms_per_call for our, their in zip(ours, theirs, strict=True)])


async def run(options: argparse.Namespace) -> int:
    rows: list[dict[str, Any]] = []
    tried: dict[str, dict[str, float]] = {}
    with service(*options.serve_option) as server:
        for kind in CALLS:
            programs, calls = nonced(kind), max(LANES * BATCH, int(CALLS[kind] * options.scale))
            warm, tried[kind] = await cheapest(kind, programs, calls)
            async with forks(warm, LANES) as served:
                turns = {"rocstar": partial(of_service, server), "fork": partial(of_forks, served)}
                for busy in (False, True):
                    loads: dict[str, list[Load]] = {name: [] for name in turns}
                    with taken(cores() if busy else []):
                        for turn in turns.values():
                            await turn(programs, LANES * BATCH)
                        for _ in range(options.rounds):
                            for name, turn in turns.items():
                                loads[name].append(await turn(programs, calls))
                    about = {"program": kind, "machine": "busy" if busy else "as it is", "setting": warm.name}
                    over = round(ratio(loads["rocstar"], loads["fork"]), 3)
                    rows.append({**about, "ratio": over, **{name: summary(some) for name, some in loads.items()}})
                    print(rows[-1])
    claims = [
        claim(
            f"CPU of `{row['program']}` through HTTP over that of a bare fork, machine {row['machine']}",
            row["ratio"],
            at_most=BARS[row["program"]],
        )
        for row in rows
    ]
    wrong = sum(row[who]["wrong"] for row in rows for who in ("rocstar", "fork"))
    claims.append(claim("wrong answers beside bare forks", wrong, "calls", at_most=0))
    result = {"batch": BATCH, "lanes": LANES, "rows": rows, "tried_ms": tried}
    return finish("sandbox_forks", result, claims, options.out)
