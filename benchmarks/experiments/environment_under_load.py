"""The tool environment under load: do good programs stay right and quick while others hang, crash and grow?

    python benchmarks/experiments/environment_under_load.py --seeds 3

One pool of the sandbox, more and more calls in flight. Of the programs one in ten does what a policy's
programs do when they go wrong: loops, exits with an error, asks for too much memory, floods its output. Every
answer is checked: of a good program its own number, of a bad one its status. Reported for each level and
seed: calls per second, how long a good call took at the median and at the 99th percentile, how many answers
were wrong (in a run, a wrong tool result) or lost, and the load that other work made before it began. A level
that was measured is not measured again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop
from arms import ROOT, figure, mean_line, write
from sandbox_bench.programs import MAKERS
from sandbox_bench.stats import percentile

from rocstar.sandbox import ExecRequest, Limits, SandboxError, SandboxPool, Status

LEVELS = (8, 64, 512, 4096)
WALL_S, DEADLINE_S = 1.0, 600.0
BAD_SHARE = 0.1
FLAVOURS = ("stdlib", "numeric")
MEMORY_BYTES, OUTPUT_BYTES = 128 << 20, 64 << 10
LIMITS = Limits(wall_s=WALL_S, memory_bytes=MEMORY_BYTES, output_bytes=OUTPUT_BYTES)
BAD = {
    "while True: pass": Status.TIMEOUT,
    "raise ValueError('no')": Status.ERROR,
    "x = 'x' * (1 << 30)": Status.MEMORY_LIMIT,
    f"print('x' * {8 * OUTPUT_BYTES})": Status.OUTPUT_LIMIT,
}


@dataclass(frozen=True, kw_only=True)
class Answered:
    """One call, as it came back."""

    kind: str
    seconds: float
    is_right: bool
    is_lost: bool = False
    """The sandbox itself failed: in a run the trajectory has no reward."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--levels", type=int, nargs="+", default=LEVELS, metavar="N", help="calls in flight")
    parser.add_argument("--rounds", type=int, default=4, help="calls of a level, in multiples of it")
    parser.add_argument("--kinds", nargs="+", default=["print", "numpy"], choices=sorted(MAKERS))
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "experiments" / "environment")
    name = "environment_under_load"
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / f"{name}.json")
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "measured" / f"{name}.svg")
    options = parser.parse_args()
    options.miniature = False
    measured = [measure(options, seed, level) for seed in range(options.seeds) for level in options.levels]
    write(options, {"bad_share": BAD_SHARE, "levels": summary(measured), "results": measured})
    options.figure.write_text(drawn(options, measured))


def measure(options: argparse.Namespace, seed: int, level: int) -> dict[str, Any]:
    """One level of one seed, from its file where that is there."""
    file = options.runs / f"seed_{seed}_level_{level}.json"
    if not file.exists():
        options.runs.mkdir(parents=True, exist_ok=True)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(load(seed, level, level * options.rounds, options.kinds))
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(found))
        partial.replace(file)
        print(json.dumps(found), flush=True)
    measured: dict[str, Any] = json.loads(file.read_text())
    return measured


async def load(seed: int, level: int, calls: int, kinds: list[str]) -> dict[str, Any]:
    """`calls` calls, `level` of them in flight, each followed by the next."""
    rng = random.Random(f"environment|{seed}|{level}")
    waiting = iter([drawn_call(rng, number, kinds) for number in range(calls)])
    answers: list[Answered] = []
    busy = os.getloadavg()[0]

    async with SandboxPool(FLAVOURS) as pool:
        for flavour in FLAVOURS:  # warm before the clock starts
            await called(pool, "good", "print(1)", flavour, "1")

        async def lane() -> None:
            for kind, code, flavour, expected in waiting:
                answers.append(await called(pool, kind, code, flavour, expected))

        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(min(level, calls)):
                group.create_task(lane())
        seconds = time.perf_counter() - started
    at = {"seed": seed, "in_flight": level, "calls": calls, "load_of_the_machine": busy}
    return at | told(answers, seconds)


def drawn_call(rng: random.Random, number: int, kinds: list[str]) -> tuple[str, str, str, str]:
    """Kind, code, flavour, and what must come back."""
    if rng.random() < BAD_SHARE:
        code = rng.choice(list(BAD))
        return "bad", code, "stdlib", BAD[code].value
    program = MAKERS[rng.choice(kinds)](1_000_000 + number)
    return "good", program.code, program.flavour, program.expected


async def called(pool: SandboxPool, kind: str, code: str, flavour: str, expected: str) -> Answered:
    started = time.perf_counter()
    request = ExecRequest(code=code, limits=LIMITS, flavour=flavour)
    try:
        result = await pool.run(request, deadline=asyncio.get_running_loop().time() + DEADLINE_S)
    except (SandboxError, TimeoutError):
        return Answered(kind=kind, seconds=time.perf_counter() - started, is_right=False, is_lost=True)
    seconds = time.perf_counter() - started
    said = "".join(result.stdout.split())
    is_right = (
        result.status is Status.OK and said == "".join(expected.split())
        if kind == "good"
        else result.status.value == expected
    )
    return Answered(kind=kind, seconds=seconds, is_right=is_right)


def told(answers: list[Answered], seconds: float) -> dict[str, Any]:
    good = [answer.seconds * 1e3 for answer in answers if answer.kind == "good"]
    wrong = Counter(a.kind for a in answers if not a.is_right and not a.is_lost)
    return {
        "calls_per_s": len(answers) / seconds,
        "good_p50_ms": percentile(good, 0.5),
        "good_p99_ms": percentile(good, 0.99),
        "wrong_good": wrong["good"],
        "wrong_bad": wrong["bad"],
        "lost": sum(answer.is_lost for answer in answers),
        "limits": asdict(LIMITS),
    }


def summary(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Over seeds: the median, and all that was wrong."""
    rows = []
    for level in sorted({one["in_flight"] for one in measured}):
        of_level = [one for one in measured if one["in_flight"] == level]
        medians = {
            name: percentile([one[name] for one in of_level], 0.5)
            for name in ("calls_per_s", "good_p50_ms", "good_p99_ms")
        }
        counts = {
            name: sum(one[name] for one in of_level) for name in ("calls", "wrong_good", "wrong_bad", "lost")
        }
        rows.append({"in_flight": level, **medians, **counts})
    return rows


def drawn(options: argparse.Namespace, measured: list[dict[str, Any]]) -> str:
    def by_seed(name: str, scale: float) -> list[list[tuple[float, float | None]]]:
        return [
            [(float(one["in_flight"]), one[name] * scale) for one in measured if one["seed"] == seed]
            for seed in range(options.seeds)
        ]

    across = "calls in flight"
    rates = [mean_line("calls per second", by_seed("calls_per_s", 1.0))]
    waits = [
        mean_line("median", by_seed("good_p50_ms", 1e-3)),
        mean_line("99th percentile", by_seed("good_p99_ms", 1e-3)),
    ]
    panels = [
        ("Throughput", across, rates, "{:,.0f}".format),
        ("Seconds of a good call", across, waits, "{:g}".format),
    ]
    return figure("The tool environment under load", panels)


if __name__ == "__main__":
    main()
