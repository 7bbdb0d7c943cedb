"""Pairs that pass a random number from a sender to a receiver, repeated until chance is excluded.

The sender has SECRET, FRAME (the secret with a checksum) and HOLD_S; the receiver has HOLD_S and `say`,
`receive` and `receive_threads` below. A result is accepted by chance once in 4096 trials.
"""

import asyncio
import math
import random

from rocstar.sandbox.attacks.pair import Pair, PairResult, Run
from rocstar.sandbox.child.bash import BASH

HOLD_S = 0.6
ENOUGH_BITS = 12
"""The correct bits that exclude chance."""

RECEIVER = """
import time as _time
def say(number):
    print("GOT", number, flush=True)
def receive(look):
    deadline = _time.monotonic() + HOLD_S
    while (start := _time.monotonic()) < deadline:
        frame = look()
        if frame > 255 and (frame >> 8) * 31 + 7 & 255 == frame & 255:
            print("GOT", frame >> 8, _time.monotonic() - start, flush=True)
            return
def receive_threads(exists):
    import os, threading
    own = os.getpid()
    def look():
        word = 0
        for tid in range(max(2, own - 600), own + 600):
            word = (word << 1 | exists(tid)) & 0xFFFFFFFF
            if word >> 24 == 0xA5 and (word >> 8 & 0xFFFF) * 31 + 7 & 255 == word & 255:
                return word & 0xFFFFFF
        return -1
    receive(look)
"""


async def attempt_numbers(pair: Pair, send: Run, receive: Run) -> PairResult:
    """Test whether the pair passes numbers; stop as soon as that is decided."""
    rounds = max(2, math.ceil(ENOUGH_BITS / pair.bits))
    offset = await difference(pair, 0, send, receive) if pair.baseline else None
    right, seconds, output = 0, 0.0, ""
    for turn in range(rounds):
        same, output = await trial(pair, turn, offset, send, receive)
        if "BREACH" in output:
            return PairResult(passed=True, bits_per_s=0.0, output=output)
        words = output.split()
        if same and not pair.baseline and len(words) > 2:
            seconds += float(words[2])
        right += same
        if (right * pair.bits >= ENOUGH_BITS and pair.bits >= ENOUGH_BITS) or (not same and pair.bits < ENOUGH_BITS):
            break
    passed = right * pair.bits >= ENOUGH_BITS
    return PairResult(passed=passed, bits_per_s=right * pair.bits / seconds if seconds else 0.0, output=output)


async def trial(pair: Pair, turn: int, offset: int | None, send: Run, receive: Run) -> tuple[bool, str]:
    """Send a number. Return (True if it arrived, the output). offset: the receiver's number without one."""
    # Every other number is not 0, which a receiver may read without a sender.
    secret = random.randrange(int(turn % 2 == 0), 1 << pair.bits)
    if pair.baseline:
        got = await difference(pair, secret, send, receive)
        return got is not None and offset is not None and got - offset == secret, f"{got} - {offset}"
    output = await once(pair, secret, send, receive)
    return output.split()[:2] == ["GOT", str(secret)], output


async def difference(pair: Pair, secret: int, send: Run, receive: Run) -> int | None:
    """Return the change of the receiver's number with a sender, or None if it read none."""
    before = (await receive(_receiver(pair), pair.flavours[1])).split()
    after = (await once(pair, secret, send, receive)).split()
    if before[:1] != ["GOT"] or after[:1] != ["GOT"]:
        return None
    return int(after[1]) - int(before[1])


async def once(pair: Pair, secret: int, send: Run, receive: Run) -> str:
    """Return the receiver's output while, or after, a sender with the secret runs."""
    program = _head(pair, secret) + pair.sender
    if pair.when == "after":
        await send(program, pair.flavours[0])
        return await receive(_receiver(pair), pair.flavours[1])
    sending = asyncio.ensure_future(send(program, pair.flavours[0]))
    try:
        return await receive(_receiver(pair), pair.flavours[1])
    finally:
        await sending


def _head(pair: Pair, secret: int) -> str:
    frame = secret << 8 | (secret * 31 + 7 & 255)
    if pair.flavours[0] != BASH:
        return f"SECRET, FRAME, HOLD_S = {secret}, {frame}, {HOLD_S}\n"
    return f"SECRET={secret} FRAME={frame} HOLD_S={HOLD_S}\n"


def _receiver(pair: Pair) -> str:
    return f"HOLD_S = {HOLD_S}\n{RECEIVER}{pair.receiver}"
