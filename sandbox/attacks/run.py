"""Runs the attack programs against a pool of this machine and compares each with its expected result.

    rocstar sandbox doctor --attack                   every program, with all layers
    python -m rocstar.sandbox.attacks.run --breaches  programs that succeed without a layer, without it

After each program the suite checks that `print(1)` works, that no process, file, System V object or
descriptor is left, that the host's servers were not reached and that its files are unchanged. Programs run
one after the other, so that leftovers have one cause.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from rocstar.sandbox.attacks.catalogue import GROUPS, Part, PartResult, Program, Variant, judge, load_programs
from rocstar.sandbox.attacks.host import (
    BAIT_VARIABLE,
    Host,
    allows_user_namespace,
    census,
    kill_descendants,
    refuse_leftovers,
)
from rocstar.sandbox.child import bash
from rocstar.sandbox.command_line import run_command
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, SandboxError, Session, SessionLost

SETTLE_S = 30.0
"""Seconds for leftovers to disappear: on a busy machine an ended process is reaped late."""

UNSETTLED_S = 3.0
"""The same in a pool without some layer, where leftovers may be permanent."""

ANY_MEMORY = 1 << 40
"""So large that admission on a small machine does not reject a program for its memory limit."""

UNTIMED_S = 60.0
"""The wall clock of a program without one that does not test timeouts: 4 s may be too short on a busy
machine."""

THROUGH_S = 10.0
"""The same for `--breaches`: successful attacks have reported by then, and some never end."""

READY_PLACES = 16
"""The number of idle places that keep their descriptors (`home.cpp`)."""

GRACE_S = 30.0
"""Seconds beyond its wall clock after which a program counts as hung."""

BASH_LAYERS = frozenset(("seccomp", "notify", "landlock", "scratch"))


PLACE = ExecRequest(code="import os; print(os.getcwd())", limits=Limits(wall_s=UNTIMED_S))
AFTERWARDS = ExecRequest(code="print(1)", limits=Limits(wall_s=UNTIMED_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackVerdict:
    """problems: differences from the expected result. skipped: the reason if it was not run."""

    name: str
    group: str
    variant: str = ""
    problems: Sequence[str] = ()
    skipped: str = ""
    results: Sequence[PartResult] = field(default_factory=list)


# --- requirements of programs ----------------------------------------------------------------------------


def flavours_for(programs: Sequence[Program], without: Collection[str] = ()) -> list[str]:
    """Return the flavours that the programs need and this machine has; no bash without one of its layers."""
    wanted = frozenset[str]().union(*map(needs_of, programs))
    able = bash.offered() and not BASH_LAYERS.intersection(without)
    here = {"numeric": all(map(find_spec, ("numpy", "sympy"))), "bash": able}
    return ["stdlib", *(name for name, installed in here.items() if installed and name in wanted)]


def facts_of(place: ExecResult, flavours: Sequence[str]) -> frozenset[str]:
    """Return the facts of this machine and of the pool that ran `place`, a program that prints its directory:
    disabling a layer may disable others, for example a user per program below a private home."""
    machine = {"x86_64": "x86_64", "aarch64": "arm64"}.get(platform.machine(), "")
    found = {
        machine: bool(machine),
        "root": os.geteuid() == 0,
        "ordinary": os.geteuid() != 0,
        "scratch": place.stdout.strip() != "/",
        "users": "uid" in place.isolation.split("+"),
        "numeric": "numeric" in flavours,
        "bash": "bash" in flavours,
        "userns": allows_user_namespace(),
    }
    return frozenset(name for name, holds in found.items() if holds)


def needs_of(program: Program) -> frozenset[str]:
    return program.needs | {part.flavour for part in program.parts if part.flavour != "stdlib"}


# --- running ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Runner:
    """Runs programs in one pool. facts: the facts of this machine, for `needs`."""

    pool: SandboxPool
    host: Host
    facts: frozenset[str]

    async def run(self, program: Program) -> AttackVerdict:
        """Run one program with every layer, and check the state afterwards."""
        if missing := needs_of(program) - self.facts:
            return AttackVerdict(name=program.name, group=program.group, skipped=f"needs {', '.join(sorted(missing))}")
        self.host.lay_bait()
        results = await self.execute(program, {})
        problems = judge(program, results)
        after = await run_observed(self.pool.run(AFTERWARDS), UNTIMED_S)
        if (after.status, after.stdout) != ("ok", "1\n"):
            problems.append(f"afterwards print(1): {after}")
        problems += await find_leftovers(self.host)
        problems += self.host.visitors()
        return AttackVerdict(name=program.name, group=program.group, problems=problems, results=results)

    async def breach(self, program: Program, variant: Variant) -> AttackVerdict:
        """Run one program without its layer: it must report BREACH, otherwise its pass with all layers proves
        nothing."""
        label = variant.label
        if missing := (needs_of(program) | variant.needs) - self.facts:
            why = f"needs {', '.join(sorted(missing))}"
            return AttackVerdict(name=program.name, group=program.group, variant=label, skipped=why)
        self.host.lay_bait()
        results = await self.execute(program, variant.limits, THROUGH_S)
        self.host.visitors()
        through = any("BREACH" in result.text for result in results)
        seen = "; ".join(f"{result.status} {result.text[:200]!r}" for result in results)
        problems = [] if through else [f"without {label} the attack still fails: {seen}"]
        return AttackVerdict(name=program.name, group=program.group, variant=label, problems=problems, results=results)

    async def execute(
        self, program: Program, loosened: Mapping[str, float], untimed_s: float = UNTIMED_S
    ) -> list[PartResult]:
        """Return the result of each part. untimed_s: the wall clock of programs without one."""
        if program.parts[0].kind == "cell":
            return await self._execute_session(program, make_limits(program.parts, loosened, untimed_s))
        results: list[PartResult] = []
        parts = list(program.parts)
        while parts:
            together = [parts.pop(0)]
            while parts and parts[0].kind == "meanwhile":
                together.append(parts.pop(0))
            results += await asyncio.gather(
                *(self._call(part, make_limits([part], loosened, untimed_s)) for part in together)
            )
        return results

    async def _call(self, part: Part, limits: Limits) -> PartResult:
        request = ExecRequest(
            code=part.code,
            stdin=self.host.facts() if part.wants_facts else "",
            limits=limits,
            flavour=part.flavour,
            seed=part.seed,
            fetch=part.fetch,
            displays=part.displays,
        )
        return await run_observed(self.pool.run(request), limits.wall_s, part)

    async def _execute_session(self, program: Program, limits: Limits) -> list[PartResult]:
        opened: list[Session] = [await self.pool.open_session(limits=limits)]
        results: list[PartResult] = []
        for part in program.parts:
            if part.kind == "pause":
                await asyncio.sleep(part.seconds)
                continue
            session = opened[0]
            try:
                if part.kind == "branch":
                    session = await asyncio.wait_for(session.branch(), limits.wall_s + GRACE_S)
                    opened.append(session)
                elif part.kind == "other":
                    session = await self.pool.open_session(limits=limits)
                    opened.append(session)
            except Exception as error:  # a bug of the pool is a finding, as in `run_observed`
                results.append(failure_result(error, refused=part.kind == "branch"))
                continue
            cell = session.run(part.code, fetch=part.fetch, displays=part.displays)
            results.append(await run_observed(cell, limits.wall_s, part))
        for session in opened:
            with contextlib.suppress(SandboxError):
                await session.close()
        return results


async def wait_until_idle(lasting: Collection[int], settle_s: float) -> None:
    """Wait until only these processes are alive and two consecutive samples have the same descriptors."""
    give_up = time.monotonic() + settle_s
    before: dict[int, int] = {}
    while time.monotonic() <= give_up:
        now = census()
        if now == before and now.keys() <= set(lasting):
            return
        before = now
        await asyncio.sleep(0.02)  # the kernel gives no notice


async def find_leftovers(host: Host, settle_s: float = SETTLE_S) -> list[str]:
    """Return the leftovers after waiting for them to disappear."""
    give_up = time.monotonic() + settle_s
    while True:
        left = list(host.leftovers())
        if not left or time.monotonic() > give_up:
            return left
        await asyncio.sleep(0.02)  # the kernel gives no notice


async def run_observed(call: Any, wall_s: float, part: Part | None = None) -> PartResult:
    """Return the result of a call, or of its failure."""
    try:
        result: ExecResult = await asyncio.wait_for(call, wall_s + GRACE_S)
    except Exception as error:  # anything else than a SandboxError is a bug of the pool, and a finding
        return failure_result(error)
    came = format_fetched(result) if part is not None and (part.fetch or part.displays) else ""
    text = "\n".join(filter(None, (result.stdout, result.stderr, result.value, came)))
    truncated = result.stdout_truncated or result.stderr_truncated
    return PartResult(
        status=str(result.status), text=text, stdout=result.stdout, value=result.value, truncated=truncated
    )


def format_fetched(result: ExecResult) -> str:
    """Format files and displays as lines: number, bytes that occur, and the start of each."""
    whole = b"".join(result.files.values())
    lines = [
        f"FETCHED {len(result.files)} files, {len(whole)} bytes, of {bytes(sorted(set(whole)))[:80]!r}, "
        f"{len(result.displays)} displays"
    ]
    lines += [f"FETCHED {name} {content[:40]!r}" for name, content in result.files.items()]
    lines += [f"DISPLAY {one.mime} {len(one.data)} {one.data[:40]!r}" for one in result.displays]
    return "\n".join(lines)


def failure_result(error: Exception, *, refused: bool = False) -> PartResult:
    if isinstance(error, SessionLost):
        return PartResult(status="lost", text=f"lost: {error.reason}")
    if isinstance(error, TimeoutError):
        return PartResult(status="hung", text="no answer within its wall clock and the grace")
    if isinstance(error, SandboxError) and refused:
        return PartResult(status="refused", text=f"{error.kind}: {error}")
    return PartResult(status="failed", text=repr(error))


def make_limits(parts: Sequence[Part], loosened: Mapping[str, float], untimed_s: float = UNTIMED_S) -> Limits:
    """Return the limits of the first part, which are a session's, with those of a variant."""
    wanted = {**parts[0].limits, **loosened}
    if not any("timeout" in part.expect for part in parts):
        wanted.setdefault("wall_s", untimed_s)
    known: Any = {name: value for name, value in wanted.items() if name in Limits.__dataclass_fields__}
    return Limits(**known)


# --- the suite -------------------------------------------------------------------------------------------


def open_pool(flavours: Sequence[str], without: Collection[str] = ()) -> SandboxPool:
    return SandboxPool(
        flavours, max_live=4, memory_bytes=ANY_MEMORY, allow_no_isolation=bool(without), without=without
    )


async def run_suite(
    programs: Sequence[Program], progress: IO[str], without: Collection[str] = ()
) -> list[AttackVerdict]:
    """Run every program with all layers except `without`. After a failure the rest gets a fresh pool, so that
    damage does not count against the next attack. Raise SandboxError if no pool can start."""
    refuse_leftovers()
    verdicts: list[AttackVerdict] = []
    remaining = list(programs)
    while remaining:
        with Host() as host:
            flavours = flavours_for(remaining, without)
            async with open_pool(flavours, without) as pool:
                runner = await ready_runner(pool, host, flavours, progress if not verdicts else None)
                while remaining:
                    verdicts.append(await runner.run(remaining.pop(0)))
                    show(verdicts[-1], progress)
                    if verdicts[-1].problems:
                        break
            if left := kill_descendants():
                problems = [*verdicts[-1].problems, *(f"after the pool closed, {line}" for line in left)]
                verdicts[-1] = replace(verdicts[-1], problems=problems)
                show(verdicts[-1], progress)
    return verdicts


async def ready_runner(
    pool: SandboxPool, host: Host, flavours: Sequence[str], progress: IO[str] | None, settle_s: float = SETTLE_S
) -> "Runner":
    """Bring a new pool into the state between calls, which becomes the baseline of `host`."""
    lasting = census()
    place = await pool.run(PLACE)
    if progress is not None:
        print(f"layers: {place.isolation} (tier {place.tier})", file=progress, flush=True)
    for flavour in flavours:
        await asyncio.gather(*(pool.run(ExecRequest(code="1", flavour=flavour)) for _ in range(4)))
    # Concurrently, so that all places, two descriptors each, are in use once.
    sessions = await asyncio.gather(*(pool.open_session() for _ in range(READY_PLACES)))
    with contextlib.suppress(SandboxError):  # no branches without the notify layer
        await (await sessions[0].branch()).close()
    for session in sessions:
        await session.close()
    directory = Path((await pool.run(PLACE)).stdout.strip())
    await wait_until_idle(lasting, settle_s)
    if directory.parent != Path("/") and directory.parent.is_dir():
        host.scratch_root = directory.parent
    host.baseline = census()
    return Runner(pool, host, facts_of(place, flavours))


async def run_breaches(programs: Sequence[Program], progress: IO[str]) -> list[AttackVerdict]:
    """Run every program with variants in pools without the layers of the variant."""
    refuse_leftovers()
    verdicts: list[AttackVerdict] = []
    by_layers: dict[frozenset[str], list[tuple[Program, Variant]]] = {}
    for program in programs:
        for variant in program.variants:
            by_layers.setdefault(variant.without, []).append((program, variant))
    for without, pairs in by_layers.items():
        with Host() as host:
            flavours = flavours_for([program for program, _ in pairs], without)
            async with open_pool(flavours, without) as pool:
                runner = await ready_runner(pool, host, flavours, None, UNSETTLED_S)
                for program, variant in pairs:
                    verdicts.append(await runner.breach(program, variant))
                    show(verdicts[-1], progress)
    return verdicts


def show(verdict: AttackVerdict, to: IO[str]) -> None:
    word = "skip" if verdict.skipped else "FAIL" if verdict.problems else "ok"
    without = f" without {verdict.variant}" if verdict.variant else ""
    print(f"{word:<5} {verdict.group:<12} {verdict.name}{without} {verdict.skipped}".rstrip(), file=to)
    for problem in verdict.problems:
        print(f"      {problem}", file=to)
    to.flush()


def table(verdicts: Sequence[AttackVerdict]) -> str:
    lines = [f"{'group':<14}{'as expected':>12}{'not':>6}{'skipped':>9}"]
    rows = [(group, [v for v in verdicts if v.group == group]) for group in GROUPS]
    for name, members in (*rows, ("all", list(verdicts))):
        if members:
            counts = (sum(not v.problems and not v.skipped for v in members), sum(bool(v.problems) for v in members))
            skipped = sum(bool(v.skipped) for v in members)
            lines.append(f"{name:<14}{counts[0]:>12}{counts[1]:>6}{skipped:>9}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suite. Return 0 only if every program has its expected result, 2 if no pool can start."""
    parser = argparse.ArgumentParser(prog="rocstar.sandbox.attacks.run", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="programs to run (default: all)")
    parser.add_argument("--breaches", action="store_true", help="run without the layers that hold a program")
    parser.add_argument("--without", nargs="*", default=[], help="layers to disable, to test the others")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON; progress to stderr")
    options = parser.parse_args(argv)
    if BAIT_VARIABLE not in os.environ:
        # /proc has the environment with which a process was started.
        command = [
            sys.executable,
            "-P",
            "-m",
            "rocstar.sandbox.attacks.run",
            *(sys.argv[1:] if argv is None else argv),
        ]
        os.execve(sys.executable, command, {**os.environ, BAIT_VARIABLE: "swordfish"})
    programs = load_programs()
    if unknown := set(options.names) - {program.name for program in programs}:
        print(f"unknown program {min(unknown)}", file=sys.stderr)
        return 2
    chosen = [program for program in programs if not options.names or program.name in options.names]
    progress = sys.stderr if options.json else sys.stdout

    def attack() -> int:
        if options.breaches:
            verdicts = asyncio.run(run_breaches(chosen, progress))
        else:
            verdicts = asyncio.run(run_suite(chosen, progress, options.without))
        print(json.dumps([asdict(verdict) for verdict in verdicts]) if options.json else table(verdicts))
        return int(any(verdict.problems for verdict in verdicts))

    return run_command(attack)


if __name__ == "__main__":
    sys.exit(main())
