"""A fuzzer over pairs of allowed system calls: does what one program calls change what another one sees?

    python benchmarks/pair_fuzz.py [--seconds 120] [--seed N] [--without LAYER] [--out FILE]

    writer   one call with drawn arguments, again and again, or as often getpid    by a drawn coin, per round
    reader   another call with drawn arguments, a hundred times; its answers' digest

A pair is a finding when the digest tells the coin in ROUNDS rounds without a mistake, and three times more
with fresh coins. Clocks, and what is drawn anew each time, differ between any two readings and so tell
nothing. Both are calls of one pool. What is known to be open (docs/reference/threats.md) is left out: the
numbers of threads, inodes and free pages. The first pair locks a file: without the filter (`--without
seccomp`) it has to be found, or nothing would be.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sandbox_bench.report import bar, command, finish

from rocstar.sandbox import _native
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, Limits, SandboxError

ROUNDS = 8
CONFIRMATIONS = 3
LIMITS = Limits(wall_s=3.0, cpu_s=3)
NEVER = frozenset(
    (0, 3, 15, 34, 60, 231, 232, 35, 130, 219, 23, 7, 270, 271, 281, 230, 202, 61, 247, 128, 56)
)
"""By number on x86-64: reading and closing descriptors that the harness needs, waiting, ending, forking."""

KNOWN = {
    "sysinfo": (99,),
    "numbers of inodes": (5, 4, 6, 262, 332),
    "pages of the process": (98,),
}

PRELUDE = """
import ctypes, hashlib, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
room = ctypes.create_string_buffer(4096)
try:
    own = os.open("own", os.O_RDWR | os.O_CREAT)
except OSError:
    own = os.open("/dev/null", os.O_RDWR)
library = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
values = {"room": ctypes.addressof(room), "library": library, "own": own, "pid": os.getpid()}
def call(number, words):
    given = [ctypes.c_long(values.get(word, 0) if isinstance(word, str) else word) for word in words]
    ctypes.memset(room, 0, 4096)
    done = libc.syscall(ctypes.c_long(number), *given)
    return done if done >= 0 else -ctypes.get_errno()
"""
WRITER = """
while True:
    call(NUMBER if COIN else 39, WORDS)  # getpid: as much work, and nothing that anybody could see
    print("on", flush=True)
    time.sleep(0.0005)
"""
READER = """
seen = hashlib.blake2b(digest_size=8)
for _ in range(100):
    seen.update(repr((call(NUMBER, WORDS), room.raw)).encode())
print(seen.hexdigest())
"""

Call = tuple[int, tuple[Any, ...]]
Pair = Callable[[bool], tuple[ExecRequest, ExecRequest]]
"""The writer and the reader for a coin."""
LOCK: Call = (73, ("library", 6, 0, 0, 0, 0))  # flock(library, LOCK_EX | LOCK_NB)


def draw(rng: random.Random, numbers: list[int]) -> Call:
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


def pair_of(writer: Call, reader: Call) -> Pair:
    return lambda coin: (request_of(WRITER, writer, coin), request_of(READER, reader, True))


def request_of(text: str, call: Call, coin: bool) -> ExecRequest:
    """Its text is the same for both coins: another length would put its memory elsewhere."""
    code = f"COIN, NUMBER, WORDS = {coin!r:<5}, {call[0]}, {call[1]}\n{PRELUDE}{text}"
    return ExecRequest(code=code, flavour="stdlib", limits=LIMITS)


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


async def fuzz(seconds: float, seed: int, without: list[str]) -> dict[str, Any]:
    rng = random.Random(seed)
    known = {number for numbers in KNOWN.values() for number in numbers}
    numbers = sorted(set(_native.allowed_calls()) - NEVER)
    pairs, findings = 0, list[dict[str, Any]]()
    isolation: dict[str, Any] = {"without": without, "allow_no_isolation": bool(without)}
    # Run by `nice`, its programs stand back as far: each is a group of its own to the scheduler.
    async with SandboxPool(max_live=3, nice=max(0, os.nice(0)), **isolation) as pool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            writer, reader = draw(rng, numbers), draw(rng, [n for n in numbers if n not in known])
            if pairs == 0:
                writer = reader = LOCK
            pairs += 1
            pair = pair_of(writer, reader)
            if await tells(pool, pair, rng) and await confirmed(pool, pair, rng):
                findings.append({"writer": writer, "reader": reader})
        restarts = pool.restarts
    return {"pairs": pairs, "calls": len(numbers), "findings": findings, "restarts": restarts}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--without", nargs="*", default=[], metavar="LAYER", help="left out, to be found out")
    default = Path(__file__).parent / "results" / "pair_fuzz.json"
    parser.add_argument("--out", type=Path, default=default, help="where the JSON goes")
    options = parser.parse_args()
    found = asyncio.run(fuzz(options.seconds, options.seed, options.without))
    result = {"command": command(sys.argv), "seconds": options.seconds, "seed": options.seed, **found}
    bars = [
        bar("pairs that pass a bit", len(found["findings"]), 0, at_most=True),
        bar("supervisors that died", found["restarts"], 0, at_most=True),
    ]
    return finish("pair_fuzz", result, bars, options.out)


if __name__ == "__main__":
    sys.exit(main())
