"""Runs the attack programs against a pool of this machine and says whether each came to what it must.

    rocstar sandbox doctor --attack                   every program, with all layers
    python -m rocstar.sandbox.attacks.run --breaches  those that one missing layer lets through, without it

After each program: `print(1)` is still right; no process, file, System V object or descriptor is left; none
of the host's servers was reached; its files are whole. Programs run one after the other, so that what is
left behind has one cause.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import IO, Any

from rocstar.sandbox.pool import pool as pools
from rocstar.sandbox.attacks.host import BAIT_VARIABLE, Host, census, kill_descendants, refuse_leftovers
from rocstar.sandbox.attacks.judge import PartResult, judge
from rocstar.sandbox.attacks.catalogue import GROUPS, Part, Program, Variant, load_programs
from rocstar.sandbox.attacks.needs import facts_of, flavours_for, needs_of
from rocstar.sandbox.console import guarded
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, SandboxError, Session, SessionLost

OPTIONAL_LAYERS = frozenset(("namespaces",))
SETTLE_S = 30.0
"""How long what is left may take to go: on a busy machine a process that has ended is reaped late."""

UNSETTLED_S = 3.0
"""The same before programs run in a pool without some layer, where something may stay for good."""

ANY_MEMORY = 1 << 40
"""Admission is not what is attacked here: a small machine must not refuse a program for its limit."""

UNTIMED_S = 60.0
"""The wall clock of a program that names none and is not to be late: 4 s would judge a busy machine."""

THROUGH_S = 10.0
"""The same without the layer that holds it: it has said so by then, and some would go on for ever."""

READY_PLACES = 16
"""So many places for programs keep their descriptors while nobody uses them (`home.cpp`), and never more."""

GRACE_S = 30.0
"""How much longer than its wall clock a program may take before it counts as hung."""

PLACE = ExecRequest(code="import os; print(os.getcwd())", limits=Limits(wall_s=UNTIMED_S))
AFTERWARDS = ExecRequest(code="print(1)", limits=Limits(wall_s=UNTIMED_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackVerdict:
    """problems: empty when the program came to what it must. skipped: why it was not run."""

    name: str
    group: str
    variant: str = ""
    problems: Sequence[str] = ()
    skipped: str = ""
    results: Sequence[PartResult] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.problems and not self.skipped


# --- running ---------------------------------------------------------------------------------------------


class Runner:
    """Runs programs in one pool. facts: what this machine has, for `needs`."""

    def __init__(self, pool: SandboxPool, host: Host, facts: frozenset[str], flavours: Sequence[str]) -> None:
        self._pool = pool
        self._flavours = flavours
        self._host = host
        self._facts = facts

    async def warm_up(self, lasting: Collection[int], settle_s: float) -> None:
        """Brings the pool, whose own processes are `lasting`, to the state in which it is between calls."""
        for flavour in self._flavours:
            await asyncio.gather(*(self._pool.run(ExecRequest(code="1", flavour=flavour)) for _ in range(4)))
        # All at once: how many calls run side by side is a matter of luck, and each place is two descriptors.
        sessions = await asyncio.gather(*(self._pool.open_session() for _ in range(READY_PLACES)))
        with contextlib.suppress(SandboxError):  # no branches without the notify layer
            await (await sessions[0].branch()).close()
        for session in sessions:
            await session.close()
        place = await self._pool.run(PLACE)
        await at_rest(lasting, settle_s)
        self._host.find_scratch(place.stdout.strip())
        self._host.settle_baseline()

    async def run(self, program: Program) -> AttackVerdict:
        """One program with every layer, and the state of the sandbox after it."""
        if missing := needs_of(program) - self._facts:
            return AttackVerdict(
                name=program.name, group=program.group, skipped=f"needs {', '.join(sorted(missing))}"
            )
        self._host.lay_bait()
        results = await self.execute(program, {})
        problems = judge(program, results)
        problems += await self._aftermath()
        return AttackVerdict(name=program.name, group=program.group, problems=problems, results=results)

    async def breach(self, program: Program, variant: Variant) -> AttackVerdict:
        """One program without what holds it: it must say BREACH, or it proves nothing with all layers."""
        label = variant.label
        if missing := (needs_of(program) | variant.needs) - self._facts:
            why = f"needs {', '.join(sorted(missing))}"
            return AttackVerdict(name=program.name, group=program.group, variant=label, skipped=why)
        self._host.lay_bait()
        results = await self.execute(program, variant.limits, THROUGH_S)
        self._host.visitors()
        through = any("BREACH" in result.text for result in results)
        seen = "; ".join(f"{result.status} {result.text[:200]!r}" for result in results)
        problems = [] if through else [f"without {label} it is still held: {seen}"]
        return AttackVerdict(
            name=program.name, group=program.group, variant=label, problems=problems, results=results
        )

    async def execute(
        self, program: Program, loosened: Mapping[str, float], untimed_s: float = UNTIMED_S
    ) -> list[PartResult]:
        """What each part came to. untimed_s: the wall clock where the program names none."""
        if program.is_session:
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
            stdin=self._host.facts() if part.wants_facts else "",
            limits=limits,
            flavour=part.flavour,
            seed=part.seed,
            fetch=part.fetch,
            displays=part.displays,
        )
        return await observed(self._pool.run(request), limits.wall_s, part)

    async def _execute_session(self, program: Program, limits: Limits) -> list[PartResult]:
        opened: list[Session] = [await self._pool.open_session(limits=limits)]
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
                    session = await self._pool.open_session(limits=limits)
                    opened.append(session)
            except Exception as error:  # a bug of the pool is a finding, as in `observed`
                results.append(of_failure(error, refused=part.kind == "branch"))
                continue
            cell = session.run(part.code, fetch=part.fetch, displays=part.displays)
            results.append(await observed(cell, limits.wall_s, part))
        for session in opened:
            with contextlib.suppress(SandboxError):
                await session.close()
        return results

    async def _aftermath(self) -> list[str]:
        after = await observed(self._pool.run(AFTERWARDS), UNTIMED_S)
        problems = [] if (after.status, after.stdout) == ("ok", "1\n") else [f"afterwards print(1): {after}"]
        problems += await settled(self._host)
        return problems + self._host.visitors()


async def at_rest(lasting: Collection[int], settle_s: float) -> None:
    """Returns when nobody lives but these, and two looks in a row find the same descriptors open."""
    give_up = time.monotonic() + settle_s
    before: dict[int, int] = {}
    while time.monotonic() <= give_up:
        now = census()
        if now == before and now.keys() <= set(lasting):
            return
        before = now
        await asyncio.sleep(0.02)  # the kernel says nothing when it has finished


async def settled(host: Host, settle_s: float = SETTLE_S) -> list[str]:
    """What is left once it had time to go. A process that has just ended is reaped a moment later."""
    give_up = time.monotonic() + settle_s
    while True:
        left = host.leftovers()
        if not left or time.monotonic() > give_up:
            return left
        await asyncio.sleep(0.02)  # the kernel says nothing when it has finished


async def observed(call: Any, wall_s: float, part: Part | None = None) -> PartResult:
    try:
        result: ExecResult = await asyncio.wait_for(call, wall_s + GRACE_S)
    except Exception as error:  # whatever else the pool raises is a bug of its own, and a finding
        return of_failure(error)
    came = fetched(result) if part is not None and (part.fetch or part.displays) else ""
    text = "\n".join(filter(None, (result.stdout, result.stderr, result.value, came)))
    truncated = result.stdout_truncated or result.stderr_truncated
    return PartResult(
        status=str(result.status), text=text, stdout=result.stdout, value=result.value, truncated=truncated
    )


def fetched(result: ExecResult) -> str:
    """Files and displays as lines: how many, which bytes occur in them, and how each begins."""
    whole = b"".join(result.files.values())
    lines = [
        f"FETCHED {len(result.files)} files, {len(whole)} bytes, of {bytes(sorted(set(whole)))[:80]!r}, "
        f"{len(result.displays)} displays"
    ]
    lines += [f"FETCHED {name} {content[:40]!r}" for name, content in result.files.items()]
    lines += [f"DISPLAY {one.mime} {len(one.data)} {one.data[:40]!r}" for one in result.displays]
    return "\n".join(lines)


def of_failure(error: Exception, *, refused: bool = False) -> PartResult:
    if isinstance(error, SessionLost):
        return PartResult(status="lost", text=f"lost: {error.reason}")
    if isinstance(error, TimeoutError):
        return PartResult(status="hung", text="no answer within its wall clock and the grace")
    if isinstance(error, SandboxError) and refused:
        return PartResult(status="refused", text=f"{error.kind}: {error}")
    return PartResult(status="failed", text=repr(error))


def make_limits(parts: Sequence[Part], loosened: Mapping[str, float], untimed_s: float = UNTIMED_S) -> Limits:
    """Those of the first part, which are a session's, with what a variant loosens."""
    wanted = {**parts[0].limits, **loosened}
    if not any("timeout" in part.expect for part in parts):
        wanted.setdefault("wall_s", untimed_s)
    known: Any = {name: value for name, value in wanted.items() if name in Limits.__dataclass_fields__}
    return Limits(**known)


# --- the suite -------------------------------------------------------------------------------------------


def open_pool(flavours: Sequence[str], without: Collection[str] = ()) -> SandboxPool:
    left_out = [layer for layer in without if layer in pools.LAYERS or layer not in OPTIONAL_LAYERS]
    return SandboxPool(
        flavours, max_live=4, memory_bytes=ANY_MEMORY, allow_no_isolation=bool(left_out), without=left_out
    )


async def run_suite(
    programs: Sequence[Program], progress: IO[str], without: Collection[str] = ()
) -> list[AttackVerdict]:
    """Every program with all layers but those in `without`. After a failure the others get a fresh pool, for
    what one attack broke is not the next one's failure. Raises SandboxError when there is no pool."""
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
    pool: SandboxPool,
    host: Host,
    flavours: Sequence[str],
    progress: IO[str] | None,
    settle_s: float = SETTLE_S,
) -> "Runner":
    lasting = census()
    place = await pool.run(PLACE)
    if progress is not None:
        print(f"layers: {place.isolation} (tier {place.tier})", file=progress, flush=True)
    runner = Runner(pool, host, facts_of(place, flavours), flavours)
    await runner.warm_up(lasting, settle_s)
    return runner


async def run_breaches(programs: Sequence[Program], progress: IO[str]) -> list[AttackVerdict]:
    """Every program that says what lets it through, in a pool that lacks just that."""
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
            counts = (sum(v.passed for v in members), sum(bool(v.problems) for v in members))
            skipped = sum(bool(v.skipped) for v in members)
            lines.append(f"{name:<14}{counts[0]:>12}{counts[1]:>6}{skipped:>9}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 only when every program came to what it must; 2 when there is no pool."""
    parser = argparse.ArgumentParser(
        prog="rocstar.sandbox.attacks.run", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("names", nargs="*", help="programs to run; all of them without a name")
    parser.add_argument("--breaches", action="store_true", help="run without the layers that hold a program")
    parser.add_argument(
        "--without", nargs="*", default=[], help="layers to leave out: what do the others hold?"
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON; progress to stderr")
    options = parser.parse_args(argv)
    if BAIT_VARIABLE not in os.environ:
        # What a process can find in /proc is the environment that it was started with.
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
        print(f"no program has the name {min(unknown)}", file=sys.stderr)
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

    return guarded(attack)


if __name__ == "__main__":
    sys.exit(main())
