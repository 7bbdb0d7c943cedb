"""Pairs of programs that try to pass a number from one to the other, where nothing may pass.

    sender   (a call, a session, another pool's or another user's) --what the kernel shares--> receiver

    python -m rocstar.sandbox.attacks.channels [NAME...]   what passes between two calls, in bits per second

A file of pairs/ has a header of `# field: value` lines, the sender, a line `# %% receiver` and the receiver:

    when      live: both at a time; after: the receiver when the sender has ended
    tries     what carries the number           through   system calls of the filter that it takes
    bits      of a number (16)                  baseline  yes: how the receiver's number changed counts
    sender    of another pair                   needs     facts of the machine
    open      where it is known to pass: docs/reference/threats.md names it with its bits per second

The sender knows SECRET, FRAME (the secret with a check sum) and HOLD_S, the receiver HOLD_S and `say`,
`receive` and `receive_threads` below. A number that arrives by chance does so once in 4096 trials.
"""

import argparse
import asyncio
import json
import math
import random
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, Limits

FOLDER = Path(__file__).parent / "pairs"
HOLD_S = 0.6
ENOUGH_BITS = 12
"""Seen right, that a number did not arrive by chance."""

LIMITS = Limits(wall_s=10.0, cpu_s=10, memory_bytes=2 << 30)

Run = Callable[[str], Awaitable[str]]
"""Runs a program and gives what it printed."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    name: str
    tries: str
    when: str
    bits: int
    through: tuple[str, ...]
    needs: frozenset[str]
    baseline: bool
    open: str
    sender: str
    receiver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """What came through. bits_per_s: of the receiver's reading alone, without the start of either program."""

    through: bool
    bits_per_s: float
    said: str


def load_pairs(folder: Path = FOLDER) -> dict[str, Pair]:
    """By name. Raises ValueError that names the file."""
    texts = {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.py"))}
    return {name: _parse(name, text, texts) for name, text in texts.items()}


def _parse(name: str, text: str, texts: dict[str, str]) -> Pair:
    fields = dict(re.findall(r"^# ([a-z-]+): (.*)$", text, re.M))
    head, found, receiver = text.partition("# %% receiver\n")
    if not found or "tries" not in fields or "through" not in fields:
        raise ValueError(f"{name}: a pair has `tries`, `through` and a line `# %% receiver`")
    if origin := fields.get("sender"):
        head = texts[origin].partition("# %% receiver\n")[0]
        fields = {**dict(re.findall(r"^# ([a-z-]+): (.*)$", head, re.M)), **fields}
    return Pair(
        name=name,
        tries=fields["tries"],
        when=fields["when"],
        bits=int(fields.get("bits", 16)),
        through=tuple(fields["through"].split()),
        needs=frozenset(fields.get("needs", "").split()),
        baseline=fields.get("baseline") == "yes",
        open=fields.get("open", ""),
        sender=head,
        receiver=receiver,
    )


async def attempt(pair: Pair, send: Run, receive: Run) -> Passed:
    """Whether the pair passes numbers. Ends as soon as that is known."""
    rounds = max(2, math.ceil(ENOUGH_BITS / pair.bits))
    offset = await _difference(pair, 0, send, receive) if pair.baseline else None
    right, seconds, said = 0, 0.0, ""
    for turn in range(rounds):
        secret = random.randrange(1, 1 << pair.bits) if turn % 2 == 0 else random.randrange(1 << pair.bits)
        if pair.baseline:
            got = await _difference(pair, secret, send, receive)
            same = got is not None and offset is not None and got - offset == secret
            said = f"{got} - {offset}"
        else:
            said = await _once(pair, secret, send, receive)
            if "BREACH" in said:
                return Passed(through=True, bits_per_s=0.0, said=said)
            words = said.split()
            same = words[:2] == ["GOT", str(secret)]
            seconds += float(words[2]) if same and len(words) > 2 else 0.0
        right += same
        if (right * pair.bits >= ENOUGH_BITS and pair.bits >= ENOUGH_BITS) or (
            not same and pair.bits < ENOUGH_BITS
        ):
            break
    through = right * pair.bits >= ENOUGH_BITS
    return Passed(through=through, bits_per_s=right * pair.bits / seconds if seconds else 0.0, said=said)


async def _difference(pair: Pair, secret: int, send: Run, receive: Run) -> int | None:
    before = (await receive(_receiver(pair))).split()
    after = (await _once(pair, secret, send, receive)).split()
    if before[:1] != ["GOT"] or after[:1] != ["GOT"]:
        return None
    return int(after[1]) - int(before[1])


async def _once(pair: Pair, secret: int, send: Run, receive: Run) -> str:
    frame = secret << 8 | (secret * 31 + 7 & 255)
    head = f"SECRET, FRAME, HOLD_S = {secret}, {frame}, {HOLD_S}\n"
    if pair.when == "after":
        await send(head + pair.sender)
        return await receive(_receiver(pair))
    sending = asyncio.ensure_future(send(head + pair.sender))
    try:
        return await receive(_receiver(pair))
    finally:
        await sending


def _receiver(pair: Pair) -> str:
    return f"HOLD_S = {HOLD_S}\n{RECEIVER}{pair.receiver}"


def calls_of(pool: SandboxPool) -> Run:
    async def run(code: str) -> str:
        result = await pool.run(ExecRequest(code=code, limits=LIMITS, flavour="stdlib"))
        return result.stdout or f"{result.status} {result.stderr[-200:]}"

    return run


def sessions_of(pool: SandboxPool) -> Run:
    """Each program is the first cell of a session of its own."""

    async def run(code: str) -> str:
        session = await pool.open_session(limits=LIMITS, flavour="stdlib")
        try:
            result = await session.run(code)
            return result.stdout or f"{result.status} {result.stderr[-200:]}"
        finally:
            await session.close()

    return run


async def _answer_lines() -> int:
    """Runs programs that come as lines of JSON, to the end: how another user's pool is asked."""
    async with SandboxPool(max_live=3) as pool:
        run = calls_of(pool)
        print(json.dumps((await pool.run("1")).isolation), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await run(json.loads(line))), flush=True)
    return 0


async def _main(names: Sequence[str]) -> int:
    pairs = load_pairs()
    async with SandboxPool(max_live=3) as pool:
        run = calls_of(pool)
        print(f"layers: {(await pool.run('1')).isolation}")
        worst = 0
        for name in names or pairs:
            passed = await attempt(pairs[name], run, run)
            word = "open" if passed.through and pairs[name].open else "FAIL" if passed.through else "ok"
            worst |= word == "FAIL"
            rate = f"{passed.bits_per_s:12.0f} bit/s" if passed.bits_per_s else ""
            print(
                f"{word:<5}{name:<28}{rate} {'' if passed.through else passed.said.strip()[-80:]}", flush=True
            )
    return worst


def main(argv: Sequence[str] | None = None) -> int:
    """1 when something passes that is not known to."""
    parser = argparse.ArgumentParser(
        prog="rocstar.sandbox.attacks.channels", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("names", nargs="*", help="pairs to try; all of them without a name")
    parser.add_argument(
        "--lines", action="store_true", help="run programs that are lines of JSON on standard input"
    )
    options = parser.parse_args(argv)
    return asyncio.run(_answer_lines() if options.lines else _main(options.names))


if __name__ == "__main__":
    sys.exit(main())
