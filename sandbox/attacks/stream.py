"""A stream of symbols from a sender to a receiver, one per time slot.

Both programs have the start on the machine's clock (START), SLOT_S, COUNT, the length of the pilot of
alternating lowest and highest symbols (PILOT), NONCE for one-time names, and `at`, which waits for a slot.
The sender has SYMBOLS; the receiver has `tell`, and `decide` for levels of two symbols.
"""

import asyncio
import math
import os
import random
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

from rocstar.sandbox.attacks.pair import STDLIB, Pair, PairResult, Run
from rocstar.sandbox.child.bash import BASH
from rocstar.sandbox.child.cpp import CPP

PILOT = 32
MOST_SYMBOLS = 512
STREAM_S = 0.8
"""The duration of a stream, if the pilot and 64 symbols fit."""
LEAD_S = 0.5
COMPILED_LEAD_S = 5.0
"""Seconds in which both programs of a stream start."""

STREAM = """
import time as _time
def at(slot, monotonic=_time.monotonic):
    when = START + slot * SLOT_S
    while (left := when - monotonic()) > 0:
        if left > 0.002:
            _time.sleep(left - 0.001)
    return when
def tell(symbols):
    print("READ", *symbols, flush=True)
def decide(levels):
    low, high = sorted(levels[0:PILOT:2]), sorted(levels[1:PILOT:2])
    low, high = low[len(low) // 2], high[len(high) // 2]
    tell([int(abs(level - high) < abs(level - low)) for level in levels])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The result of a stream after its pilot. wrong: wrong bits of all `sent`; half of them if nothing was
    read."""

    slot_s: float
    sent: int
    wrong: int
    output: str

    @property
    def passed(self) -> bool:
        """True if chance has a probability of at most 1e-4."""
        return self.sent >= 64 and self.wrong < self.sent / 4


def program_header(flavour: str, start: float, slot_s: float, count: int, nonce: int, cold: str) -> str:
    """Return the first lines of a program of a stream. Bash has no monotonic clock: WALL is the offset of its
    clock."""
    if flavour == CPP:
        return f"const double START = {start!r}, SLOT_S = {slot_s!r};\nconst int COUNT = {count};\n"
    if flavour == BASH:
        wall = time.time() - time.monotonic()
        return f"START={start!r} WALL={wall!r} SLOT_S={slot_s!r} COUNT={count}\n"
    words = (start, slot_s, count, PILOT, nonce, cold)
    return f"START, SLOT_S, COUNT, PILOT, NONCE, COLD = {words}\n{STREAM}"


async def stream(pair: Pair, slot_s: float, send: Run, receive: Run) -> Stream:
    """Run one stream of random symbols with the given slot."""
    most = (1 << pair.bits) - 1
    count = PILOT + max(math.ceil(64 / pair.bits), min(MOST_SYMBOLS, int(STREAM_S / slot_s)))
    symbols = [most * (k % 2) for k in range(PILOT)] + [random.randint(0, most) for _ in range(count - PILOT)]
    cold = await asyncio.to_thread(_cold_file) if pair.cold else ""
    start = time.monotonic() + (COMPILED_LEAD_S if CPP in pair.flavours else LEAD_S)
    facts = start, slot_s, count, random.randrange(1 << 32), cold
    sender, receiver = (program_header(flavour, *facts) for flavour in pair.flavours)
    symbols_line = f"SYMBOLS = {symbols}" if pair.flavours[0] == STDLIB else f"SYMBOLS={''.join(map(str, symbols))}"
    sending = asyncio.ensure_future(send(f"{sender}{symbols_line}\n{pair.sender}", pair.flavours[0]))
    try:
        output = await receive(receiver + pair.receiver, pair.flavours[1])
    finally:
        sender_output = await sending
    words = output.split()
    read = [int(word) for word in words[1:]] if words[:1] == ["READ"] else []
    sent = (count - PILOT) * pair.bits
    if len(read) != count:
        return Stream(
            slot_s=slot_s, sent=sent, wrong=(sent + 1) // 2, output=f"{output[-160:]} {sender_output[-160:]}"
        )
    wrong = sum((symbols[k] ^ read[k] & most).bit_count() for k in range(PILOT, count))
    return Stream(slot_s=slot_s, sent=sent, wrong=wrong, output=f"{wrong} of {sent} bits wrong")


def _cold_file() -> str:
    """Return the largest file of the standard library, evicted from the page cache."""
    files = [path for path in Path(sysconfig.get_path("stdlib")).rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    with largest.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return str(largest)


async def attempt_streams(pair: Pair, send: Run, receive: Run) -> PairResult:
    """Test whether a stream with any of its slots passes."""
    for slot_s in pair.slots:
        found = await stream(pair, slot_s, send, receive)
        if found.passed:
            break
    rate = (found.sent - found.wrong) / found.sent * pair.bits / found.slot_s if found.passed else 0.0
    return PairResult(passed=found.passed, bits_per_s=rate, output=found.output)
