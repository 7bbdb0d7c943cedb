"""Pairs of programs that try to pass a number from one to the other, where nothing may pass.

    sender   (a call, a session, another pool's or another user's) --what the kernel shares--> receiver

    python -m rocstar.sandbox.attacks.channels [NAME...]     what passes between two calls
    python -m rocstar.sandbox.attacks.channels --json FILE   bits per second of what is known (rates.py)

A file of pairs/, which ends in .txt where it is of two languages, has a header of `# field: value` lines, the
sender, a line `# %% receiver` and the receiver:

    when      live: both at a time; after: the receiver when the sender has ended
    tries     what carries the number           through   system calls of the filter that it takes
    bits      of a number (16)                  baseline  yes: how the receiver's number changed counts
    sender    of another pair                   needs     facts of the machine
    open      where it is known to pass: docs/reference/threats.md names it with its bits per second
    closed-with  layers with which it must not
    flavours  of the sender and the receiver (stdlib stdlib); a receiver that is no Python has no helpers
    without   layers that the machine must lack for it to pass; what is closed is tried with all of them
    cold      yes: both know COLD, a file that is not in the cache
    slots     a stream: lengths in seconds of the time in which one symbol of `bits` is sent

The sender knows SECRET, FRAME (the secret with a check sum) and HOLD_S, the receiver HOLD_S and `say`,
`receive` and `receive_threads` below. A number that arrives by chance does so once in 4096 trials.

The two of a stream have agreed on when it begins by the machine's clock, on its pilot, which is the lowest
and the highest symbol in turns, and on a place for what is used up (NONCE). They know START, SLOT_S, COUNT,
PILOT and `at`, which waits for a slot; the sender SYMBOLS; the receiver `tell`, and `decide` for levels of
two symbols.
"""

import argparse
import asyncio
import json
import math
import os
import random
import re
import sys
import sysconfig
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rocstar.sandbox.child import bash, cpp
from rocstar.sandbox.child.bash import BASH
from rocstar.sandbox.child.cpp import CPP
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits

FOLDER = Path(__file__).parent / "pairs"
HOLD_S = 0.6
ENOUGH_BITS = 12
"""Seen right, that a number did not arrive by chance."""

LIMITS = Limits(wall_s=10.0, cpu_s=10, memory_bytes=2 << 30)
STDLIB = "stdlib"
PILOT = 32
MOST_SYMBOLS = 512
STREAM_S = 0.8
"""That a stream may take, where it is not for the pilot and some 64 symbols more."""
LEAD_S = 0.5
COMPILED_LEAD_S = 5.0
"""In which both programs of a stream start."""

Run = Callable[[str, str], Awaitable[str]]
"""Runs a program of a flavour and gives what it printed."""

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
class Pair:
    name: str
    tries: str
    when: str
    bits: int
    through: tuple[str, ...]
    needs: frozenset[str]
    baseline: bool
    open: str
    closed_with: frozenset[str]
    cold: bool
    without: tuple[str, ...]
    flavours: tuple[str, str]
    slots: tuple[float, ...]
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
    paths = sorted((*folder.glob("*.py"), *folder.glob("*.txt")))
    texts = {path.stem: path.read_text("utf-8") for path in paths}
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
        closed_with=frozenset(fields.get("closed-with", "").split()),
        without=tuple(fields.get("without", "").split()),
        cold=fields.get("cold") == "yes",
        flavours=_two(fields.get("flavours", f"{STDLIB} {STDLIB}")),
        slots=tuple(map(float, fields.get("slots", "").split())),
        sender=head,
        receiver=receiver,
    )


def _two(words: str) -> tuple[str, str]:
    sender, receiver = words.split()
    return sender, receiver


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What became of a stream's symbols behind its pilot. wrong: bits of all `sent`; half where nothing was
    read."""

    slot_s: float
    sent: int
    wrong: int
    said: str

    @property
    def through(self) -> bool:
        """As by chance once in 10,000 times or less."""
        return self.sent >= 64 and self.wrong < self.sent / 4


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What both programs of a stream know."""

    start: float
    slot_s: float
    count: int
    nonce: int
    cold: str

    def told(self, flavour: str) -> str:
        """As the first lines of a program. Bash has no steady clock: WALL is what its own is ahead by."""
        if flavour == CPP:
            times = f"const double START = {self.start!r}, SLOT_S = {self.slot_s!r};"
            return f"{times}\nconst int COUNT = {self.count};\n"
        if flavour == BASH:
            wall = time.time() - time.monotonic()
            return f"START={self.start!r} WALL={wall!r} SLOT_S={self.slot_s!r} COUNT={self.count}\n"
        words = (self.start, self.slot_s, self.count, PILOT, self.nonce, self.cold)
        return f"START, SLOT_S, COUNT, PILOT, NONCE, COLD = {words}\n{STREAM}"


async def stream(pair: Pair, slot_s: float, send: Run, receive: Run) -> Stream:
    """One stream of random symbols, with slots of that length."""
    most = (1 << pair.bits) - 1
    count = PILOT + max(math.ceil(64 / pair.bits), min(MOST_SYMBOLS, int(STREAM_S / slot_s)))
    symbols = [most * (k % 2) for k in range(PILOT)] + [random.randint(0, most) for _ in range(count - PILOT)]
    cold = await asyncio.to_thread(_cold_file) if pair.cold else ""
    start = time.monotonic() + (COMPILED_LEAD_S if CPP in pair.flavours else LEAD_S)
    facts = StreamFacts(start, slot_s, count, random.randrange(1 << 32), cold)
    sender, receiver = (facts.told(flavour) for flavour in pair.flavours)
    said_symbols = (
        f"SYMBOLS = {symbols}" if pair.flavours[0] == STDLIB else f"SYMBOLS={''.join(map(str, symbols))}"
    )
    sending = asyncio.ensure_future(send(f"{sender}{said_symbols}\n{pair.sender}", pair.flavours[0]))
    try:
        said = await receive(receiver + pair.receiver, pair.flavours[1])
    finally:
        sender_said = await sending
    words = said.split()
    read = [int(word) for word in words[1:]] if words[:1] == ["READ"] else []
    sent = (count - PILOT) * pair.bits
    if len(read) != count:
        return Stream(
            slot_s=slot_s, sent=sent, wrong=(sent + 1) // 2, said=f"{said[-160:]} {sender_said[-160:]}"
        )
    wrong = sum((symbols[k] ^ read[k] & most).bit_count() for k in range(PILOT, count))
    return Stream(slot_s=slot_s, sent=sent, wrong=wrong, said=f"{wrong} of {sent} bits wrong")


def _cold_file() -> str:
    """The largest file of the standard library, as after the machine's start: not in the cache."""
    files = [path for path in Path(sysconfig.get_path("stdlib")).rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    with largest.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return str(largest)


async def _attempt_streams(pair: Pair, send: Run, receive: Run) -> Passed:
    for slot_s in pair.slots:
        found = await stream(pair, slot_s, send, receive)
        if found.through:
            return Passed(
                through=True,
                bits_per_s=(found.sent - found.wrong) / found.sent * pair.bits / slot_s,
                said=found.said,
            )
    return Passed(through=False, bits_per_s=0.0, said=found.said)


async def attempt(pair: Pair, send: Run, receive: Run) -> Passed:
    """Whether the pair passes numbers. Ends as soon as that is known."""
    if pair.slots:
        return await _attempt_streams(pair, send, receive)
    rounds = max(2, math.ceil(ENOUGH_BITS / pair.bits))
    offset = await difference(pair, 0, send, receive) if pair.baseline else None
    right, seconds, said = 0, 0.0, ""
    for turn in range(rounds):
        secret = draw(pair, turn)
        if pair.baseline:
            got = await difference(pair, secret, send, receive)
            same = got is not None and offset is not None and got - offset == secret
            said = f"{got} - {offset}"
        else:
            said = await once(pair, secret, send, receive)
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


def draw(pair: Pair, turn: int) -> int:
    """A number to send; every other one is not 0, which may be what a receiver sees of nobody."""
    return random.randrange(1, 1 << pair.bits) if turn % 2 == 0 else random.randrange(1 << pair.bits)


async def difference(pair: Pair, secret: int, send: Run, receive: Run) -> int | None:
    """How the receiver's number changes with a sender; None where there was none."""
    before = (await receive(_receiver(pair), pair.flavours[1])).split()
    after = (await once(pair, secret, send, receive)).split()
    if before[:1] != ["GOT"] or after[:1] != ["GOT"]:
        return None
    return int(after[1]) - int(before[1])


async def once(pair: Pair, secret: int, send: Run, receive: Run) -> str:
    """What the receiver says beside, or after, a sender with the secret."""
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


BROKEN = re.compile(
    r"\b(?:Import|ModuleNotFound|Name|Syntax|Attribute|Type|Value|Index|Key)Error\b|command not found"
)
"""What a program says that has tried nothing."""


def _said(pair_of_programs: str, result: ExecResult) -> str:
    """Raises RuntimeError for a program that is wrong, so that its silence proves nothing."""
    if BROKEN.search(result.stderr):
        raise RuntimeError(f"a program is wrong: {result.stderr[-400:]}\n{pair_of_programs}")
    return result.stdout or f"{result.status} {result.stderr[-200:]}"


def calls_of(pool: SandboxPool) -> Run:
    async def run(code: str, flavour: str = STDLIB) -> str:
        result = await pool.run(ExecRequest(code=code, limits=LIMITS, flavour=flavour))
        return _said(code, result)

    return run


def sessions_of(pool: SandboxPool) -> Run:
    """Each program is the first cell of a session of its own, if its flavour has any."""
    call = calls_of(pool)

    async def run(code: str, flavour: str = STDLIB) -> str:
        if flavour != STDLIB:
            return await call(code, flavour)
        session = await pool.open_session(limits=LIMITS, flavour=flavour)
        try:
            result = await session.run(code)
            return _said(code, result)
        finally:
            await session.close()

    return run


async def _answer_lines() -> int:
    """Runs programs that come as lines of JSON, to the end: how another user's pool is asked."""
    pairs = filter(is_offered, load_pairs().values())
    async with SandboxPool(flavours_of(pairs), max_live=3) as pool:
        run = calls_of(pool)
        print(json.dumps((await pool.run("1")).isolation), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await run(*json.loads(line))), flush=True)
    return 0


def is_offered(pair: Pair) -> bool:
    """Whether this machine has the flavours of both programs."""
    offered = {STDLIB: True, BASH: bash.offered(), CPP: cpp.offered()}
    return all(offered[flavour] for flavour in pair.flavours)


def flavours_of(pairs: Iterable[Pair]) -> tuple[str, ...]:
    return tuple(sorted({flavour for pair in pairs for flavour in pair.flavours}))


async def _main(pairs: Sequence[Pair]) -> int:
    async with SandboxPool(flavours_of(pairs), max_live=3) as pool:
        run = calls_of(pool)
        worst = 0
        for pair in pairs:
            passed = await attempt(pair, run, run)
            word = "open" if passed.through and pair.open else "FAIL" if passed.through else "ok"
            worst |= word == "FAIL"
            rate = f"{passed.bits_per_s:12.0f} bit/s" if passed.bits_per_s else ""
            print(
                f"{word:<5}{pair.name:<28}{rate} {'' if passed.through else passed.said.strip()[-80:]}",
                flush=True,
            )
    return worst


def _measure(pairs: Sequence[Pair], out: Path) -> int:
    from rocstar.sandbox.attacks import rates

    found = asyncio.run(rates.measure(pairs, lambda line: print(line, flush=True)))
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """1 when something passes that is not known to."""
    parser = argparse.ArgumentParser(
        prog="rocstar.sandbox.attacks.channels", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("names", nargs="*", help="pairs to try; all of them without a name")
    parser.add_argument(
        "--lines", action="store_true", help="run programs that are lines of JSON on standard input"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="measure those that are known to pass")
    options = parser.parse_args(argv)
    if options.lines:
        return asyncio.run(_answer_lines())
    known = load_pairs()
    if missing := set(options.names) - known.keys():
        parser.error(f"there is no pair {min(missing)!r}; give one of {', '.join(known)}")
    pairs = [known[name] for name in options.names or known if is_offered(known[name])]
    return _measure(pairs, options.json) if options.json else asyncio.run(_main(pairs))


if __name__ == "__main__":
    sys.exit(main())
