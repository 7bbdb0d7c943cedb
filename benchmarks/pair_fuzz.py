"""A fuzzer over pairs of allowed system calls: does what one program calls change what another one sees?

    python benchmarks/pair_fuzz.py [--seconds 120] [--seed N] [--without LAYER...] [--out FILE]

    writer   one call with drawn arguments, again and again, or as often getpid    by a drawn coin, per round
    reader   another call with drawn arguments, a hundred times; its answers' digest

A pair is a finding when the digest follows the coin in ROUNDS rounds without a mistake, and three times more
with fresh coins. Clocks and random numbers differ between any two readings and so show nothing. Both are
calls of one pool. The known open channels (docs/reference/threats.md) are left out: the numbers of threads,
inodes and free pages. The first pair locks a file: without the filter (`--without seccomp`) it has to be
found, or nothing would be.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from report import claim, finish, result_parser

from rocstar.sandbox import _native
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, Limits, SandboxError

ROUNDS = 8
CONFIRMATIONS = 3
NEVER = frozenset((0, 3, 15, 34, 60, 231, 232, 35, 130, 219, 23, 7, 270, 271, 281, 230, 202, 61, 247, 128, 56))
"""By number on x86-64: reading and closing descriptors that the harness needs, waiting, ending, forking."""

KNOWN = {"sysinfo": (99,), "numbers of inodes": (5, 4, 6, 262, 332), "pages of the process": (98,)}
"""By which something is known to pass: docs/reference/threats.md."""

Call = tuple[int, tuple[Any, ...]]
Pair = Callable[[bool], tuple[ExecRequest, ExecRequest]]
"""The writer and the reader for a coin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A pair to try."""

    writer: Call
    reader: Call
    pair: Pair


LIMITS = Limits(wall_s=3.0, cpu_s=3)

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
    call(NUMBER if COIN else 39, WORDS)  # getpid: as much work, and no visible effect
    print("on", flush=True)
    time.sleep(0.0005)
"""
READER = """
seen = hashlib.blake2b(digest_size=8)
for _ in range(100):
    seen.update(repr((call(NUMBER, WORDS), room.raw)).encode())
print(seen.hexdigest())
"""

LOCK: Call = (73, ("library", 6, 0, 0, 0, 0))  # flock(library, LOCK_EX | LOCK_NB)


def trials(rng: random.Random, numbers: list[int]) -> Iterator[Trial]:
    known = {number for some in KNOWN.values() for number in some}
    readable = [number for number in numbers if number not in known]
    for index in count():
        writer, reader = draw_call(rng, numbers), draw_call(rng, readable)
        yield trial_of(writer, reader) if index else trial_of(LOCK, LOCK)


def trial_of(writer: Call, reader: Call) -> Trial:
    def pair(coin: bool) -> tuple[ExecRequest, ExecRequest]:
        return request_of(WRITER, writer, coin), request_of(READER, reader, True)

    return Trial(writer=writer, reader=reader, pair=pair)


def request_of(text: str, call: Call, coin: bool) -> ExecRequest:
    """Its text is the same for both coins: another length would put its memory elsewhere."""
    code = f"COIN, NUMBER, WORDS = {coin!r:<5}, {call[0]}, {call[1]}\n{PRELUDE}{text}"
    return ExecRequest(code=code, flavour="stdlib", limits=LIMITS)


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
    """Whether the pair is found each time: a reader with two answers is right by chance at times."""
    return all([await tells(pool, pair, rng) for _ in range(CONFIRMATIONS)])


async def fuzz(options: argparse.Namespace, numbers: list[int]) -> dict[str, Any]:
    """Try pairs for `options.seconds`."""
    rng = random.Random(options.seed)
    isolation = {"without": options.without, "allow_no_isolation": bool(options.without)}
    pairs, findings = 0, list[dict[str, Any]]()
    async with SandboxPool(max_live=3, **isolation) as pool:
        end = time.monotonic() + options.seconds
        for trial in trials(rng, numbers):
            if time.monotonic() >= end:
                break
            pairs += 1
            if await tells(pool, trial.pair, rng) and await confirmed(pool, trial.pair, rng):
                findings.append({"writer": trial.writer, "reader": trial.reader})
                print("found", findings[-1], flush=True)
        return {"pairs": pairs, "findings": findings, "restarts": pool.restarts}


def main() -> int:
    parser = result_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--without", nargs="*", default=[], metavar="LAYER", help="leave these layers out")
    options = parser.parse_args()
    numbers = sorted(set(_native.allowed_calls()) - NEVER)
    found = asyncio.run(fuzz(options, numbers))
    passing, died = len(found["findings"]), found["restarts"]
    claims = [
        claim("pairs of system calls by which one program passes a bit to another", passing, "pairs", at_most=0),
        claim("supervisors that died while system calls were fuzzed", died, "supervisors", at_most=0),
        claim("pairs of system calls that were fuzzed", found["pairs"], "pairs"),
    ]
    return finish("pair_fuzz", {"calls": len(numbers), **found}, claims, options.out, seeds=[options.seed])


if __name__ == "__main__":
    sys.exit(main())
