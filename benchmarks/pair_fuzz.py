"""A fuzzer over pairs of allowed system calls: does what one program calls change what another one sees?

    python benchmarks/pair_fuzz.py [--seconds 120] [--seed N] [--without LAYER...] [--pause S] [--out FILE]

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
import random
import sys
from collections.abc import Iterator
from itertools import count

from sandbox_bench.fuzzer import (
    NEVER,
    Call,
    Trial,
    Tried,
    draw_call,
    finish_fuzz,
    options_of,
    pool_options,
    readable_of,
    try_all,
)

from rocstar.sandbox import _native
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, Limits

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

LOCK: Call = (73, ("library", 6, 0, 0, 0, 0))  # flock(library, LOCK_EX | LOCK_NB)


def trials(rng: random.Random, numbers: list[int]) -> Iterator[Trial]:
    readable = readable_of(numbers)
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


async def fuzz(options: argparse.Namespace, numbers: list[int]) -> Tried:
    rng = random.Random(options.seed)
    async with SandboxPool(**pool_options(options)) as pool:
        return await try_all(pool, trials(rng, numbers), rng, options)


def main() -> int:
    options = options_of(__doc__, "pair_fuzz")
    numbers = sorted(set(_native.allowed_calls()) - NEVER)
    tried = asyncio.run(fuzz(options, numbers))
    return finish_fuzz("pair_fuzz", options, tried, {"calls": len(numbers)})


if __name__ == "__main__":
    sys.exit(main())
