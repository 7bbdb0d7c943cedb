"""What the fuzzers over pairs of programs share: their arguments, the rounds of a pair, and how they end.

trials --> tells: ROUNDS rounds with a coin --> confirmed, CONFIRMATIONS times --> finding --> JSON, bars
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox_bench.report import ROOT, bar, finish

from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, SandboxError

ROUNDS = 8
CONFIRMATIONS = 3
NEVER = frozenset(
    (0, 3, 15, 34, 60, 231, 232, 35, 130, 219, 23, 7, 270, 271, 281, 230, 202, 61, 247, 128, 56)
)
"""By number on x86-64: reading and closing descriptors that the harness needs, waiting, ending, forking."""

KNOWN = {
    "sysinfo": (99,),
    "numbers of inodes": (5, 4, 6, 262, 332),
    "pages of the process": (98,),
}
"""By which something is known to pass: docs/reference/threats.md."""

Call = tuple[int, tuple[Any, ...]]
Pair = Callable[[bool], tuple[ExecRequest, ExecRequest]]
"""The writer and the reader for a coin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A pair to try, and what a finding says of it."""

    writer: Call | str
    reader: Call | str
    pair: Pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What came of all trials. restarts: of the supervisor."""

    pairs: int
    findings: list[dict[str, Any]]
    restarts: int


def options_of(description: str | None, part: str) -> argparse.Namespace:
    """The command line of a fuzzer; `part` names its result."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--without", nargs="*", default=[], metavar="LAYER", help="left out, to be found out")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two pairs")
    default = ROOT / "benchmarks" / "results" / f"{part}.json"
    parser.add_argument("--out", type=Path, default=default, help="where the JSON goes")
    return parser.parse_args()


def pool_options(options: argparse.Namespace) -> dict[str, Any]:
    """Run by `nice`, its programs stand back as far: each is a group of its own to the scheduler."""
    isolation = {"without": options.without, "allow_no_isolation": bool(options.without)}
    return {"max_live": 3, "nice": max(0, os.nice(0)), **isolation}


def readable_of(numbers: list[int]) -> list[int]:
    """The calls of a reader: those by which nothing is known to pass."""
    known = {number for numbers in KNOWN.values() for number in numbers}
    return [number for number in numbers if number not in known]


def draw_call(rng: random.Random, numbers: list[int]) -> Call:
    """A call with six arguments, most of them of use: descriptors, a place in memory, small numbers, bits."""
    choices: tuple[Any, ...] = (0, 1, 2, 3, "own", "library", "room", "room", "pid", 4096, 64)
    words = tuple(rng.choice((*choices, 1 << rng.randrange(32), rng.randrange(64))) for _ in range(6))
    return rng.choice(numbers), words


async def reading(pool: SandboxPool, pair: Pair, coin: bool) -> str | None:
    """The reader's digest beside a writer that makes the call, or another; None where it ended otherwise."""
    writer, reader = pair(coin)
    on = asyncio.Event()
    writing = asyncio.create_task(pool.run(writer, on_output=lambda stream, text: on.set()))
    writing.add_done_callback(lambda _: on.set())
    try:
        await on.wait()
        result = await pool.run(reader)
    except SandboxError:
        return None
    finally:
        writing.cancel()
        await asyncio.wait([writing])
    return result.stdout or None


async def tells(pool: SandboxPool, pair: Pair, rng: random.Random) -> bool:
    """Whether digests with the coin and those without it have nothing in common, and each is one."""
    by_coin: dict[bool, set[str]] = {True: set(), False: set()}
    coins = [number % 2 == 0 for number in range(ROUNDS)]
    rng.shuffle(coins)
    for coin in coins:
        seen = await reading(pool, pair, coin)
        if seen is None:
            return False
        by_coin[coin].add(seen)
        if len(by_coin[True]) > 1 or len(by_coin[False]) > 1 or by_coin[True] & by_coin[False]:
            return False
    return True


async def confirmed(pool: SandboxPool, pair: Pair, rng: random.Random) -> bool:
    """Whether it tells again, and again: a reader with two answers of its own is right by chance at times."""
    return all([await tells(pool, pair, rng) for _ in range(CONFIRMATIONS)])


async def try_all(
    pool: SandboxPool, trials: Iterator[Trial], rng: random.Random, options: argparse.Namespace
) -> Tried:
    """Tries pairs for as long as was asked for."""
    pairs, findings = 0, list[dict[str, Any]]()
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        trial = next(trials)
        pairs += 1
        if await tells(pool, trial.pair, rng) and await confirmed(pool, trial.pair, rng):
            findings.append({"writer": trial.writer, "reader": trial.reader})
            print("found", findings[-1], flush=True)
        if pairs % 200 == 0:
            print(f"{pairs} pairs, {len(findings)} findings", flush=True)
        await asyncio.sleep(options.pause)
    return Tried(pairs=pairs, findings=findings, restarts=pool.restarts)


def finish_fuzz(part: str, options: argparse.Namespace, tried: Tried, about: dict[str, Any]) -> int:
    """Writes the result. `about`: what there was to draw from. Exit status 1 when a pair was found."""
    result = {
        **{"seconds": options.seconds, "seed": options.seed, "pairs": tried.pairs, **about},
        **{"findings": tried.findings, "restarts": tried.restarts},
    }
    bars = [
        bar("pairs that pass a bit", len(tried.findings), 0, at_most=True),
        bar("supervisors that died", tried.restarts, 0, at_most=True),
    ]
    return finish(part, result, bars, options.out)
