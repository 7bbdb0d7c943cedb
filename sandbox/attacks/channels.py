"""Covert channels: pairs of programs in which one tries to send a number to the other.

    sender   (a call, a session, another pool's or another user's) ----- shared kernel state -----> receiver

    python -m rocstar.sandbox.attacks.channels [NAME...]     test pairs between two calls
    python -m rocstar.sandbox.attacks.channels --json FILE   bits per second of the known channels

pair.py describes the files. The measured rates:

    number   bits: of a number   error_rate: of the numbers   bits_per_s: of correct numbers, by wall clock
                                                              including the start of both programs
    stream   bits: of a symbol   error_rate: of the bits      bits_per_s: with a perfect code

Both programs are calls of one pool. A stream is measured with each of its slots and the best counts; its
error rate is the upper end of the 95% interval, so that chance contributes nothing.
"""

import argparse
import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocstar.sandbox.attacks.number import attempt_numbers, difference, trial
from rocstar.sandbox.attacks.pair import Pair, PairResult, Run, calls_of, flavours_of, is_offered, load_pairs
from rocstar.sandbox.attacks.stream import Stream, attempt_streams, stream
from rocstar.sandbox.pool.pool import SandboxPool

NUMBER_S = 4.0
MOST_NUMBERS = 12

Row = dict[str, Any]


async def measure(pairs: Iterable[Pair], say: Callable[[str], None]) -> dict[str, Any]:
    """Measure each known channel. say: called with each row as a line."""
    given = [pair for pair in pairs if pair.open]
    rows, layers = [], ""
    for without in sorted({pair.without for pair in given}):
        async with SandboxPool(flavours_of(given), max_live=3, without=without) as pool:
            run = calls_of(pool)
            if not without:
                layers = str((await pool.run("1")).isolation)
            for pair in given:
                if pair.without == without:
                    row = {name: getattr(pair, name) for name in ("name", "tries", "open")}
                    row["without"] = list(pair.without)
                    row |= await (_streams if pair.slots else _numbers)(pair, run)
                    rows.append(row)
                    what = f"{row['trials']} numbers"
                    if row["kind"] == "stream":
                        what = f"{row['slot_s'] * 1000:g} ms a symbol"
                    rate = f"{row['bits_per_s']:12.0f} bit/s, {row['error_rate']:.0%} wrong"
                    say(f"{pair.name:<28}{rate}, {what}")
    rows.sort(key=lambda row: row["name"])
    return {"uid": os.geteuid(), "layers": layers, "pairs": rows}


async def _streams(pair: Pair, run: Run) -> Row:
    tried = [await stream(pair, slot_s, run, run) for slot_s in pair.slots]
    best = max(tried, key=lambda each: (rate_of(pair, each), -each.wrong / each.sent))
    return {
        **{"kind": "stream", "bits": pair.bits, "slot_s": best.slot_s, "trials": best.sent},
        **{"error_rate": round(best.wrong / best.sent, 4), "bits_per_s": round(rate_of(pair, best), 1)},
    }


def rate_of(pair: Pair, found: Stream) -> float:
    """Return the capacity of a stream in bits per second, as a binary symmetric channel (Shannon)."""
    errors = upper_end(found.wrong, found.sent)
    return 0.0 if errors >= 0.5 else (1 - entropy(errors)) * pair.bits / found.slot_s


def upper_end(wrong: int, sent: int, z: float = 1.96) -> float:
    """Return the upper end of Wilson's 95% interval for the share."""
    share, extra = wrong / sent, z * z / sent
    middle = share + extra / 2
    return (middle + z * math.sqrt(share * (1 - share) / sent + extra / (4 * sent))) / (1 + extra)


def entropy(share: float) -> float:
    return -sum(part * math.log2(part) for part in (share, 1 - share) if part > 0)


async def _numbers(pair: Pair, run: Run) -> Row:
    offset = await difference(pair, 0, run, run) if pair.baseline else None
    start, right, trials = time.monotonic(), 0, 0
    while trials < 2 or (trials < MOST_NUMBERS and time.monotonic() - start < NUMBER_S):
        arrived, _ = await trial(pair, trials, offset, run, run)
        right += arrived
        trials += 1
    taken_s = time.monotonic() - start
    return {
        **{"kind": "number", "bits": pair.bits, "trials": trials, "error_rate": round(1 - right / trials, 4)},
        **{"bits_per_s": round(right * pair.bits / taken_s, 1)},
    }


async def attempt(pair: Pair, send: Run, receive: Run) -> PairResult:
    """Test whether the pair passes numbers; stop as soon as that is decided."""
    return await (attempt_streams if pair.slots else attempt_numbers)(pair, send, receive)


async def _answer_lines() -> int:
    """Run programs from lines of JSON until the end of input, as the interface of another user's pool."""
    pairs = filter(is_offered, load_pairs().values())
    async with SandboxPool(flavours_of(pairs), max_live=3) as pool:
        run = calls_of(pool)
        print(json.dumps((await pool.run("1")).isolation), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await run(*json.loads(line))), flush=True)
    return 0


async def _main(pairs: Sequence[Pair]) -> int:
    async with SandboxPool(flavours_of(pairs), max_live=3) as pool:
        run = calls_of(pool)
        worst = 0
        for pair in pairs:
            result = await attempt(pair, run, run)
            word = "open" if result.passed and pair.open else "FAIL" if result.passed else "ok"
            worst |= word == "FAIL"
            rate = f"{result.bits_per_s:12.0f} bit/s" if result.bits_per_s else ""
            print(f"{word:<5}{pair.name:<28}{rate} {'' if result.passed else result.output.strip()[-80:]}", flush=True)
    return worst


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Return 1 if an unknown channel passes numbers."""
    parser = argparse.ArgumentParser(
        prog="rocstar.sandbox.attacks.channels", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("names", nargs="*", help="pairs to test (default: all)")
    parser.add_argument("--lines", action="store_true", help="run programs from lines of JSON on standard input")
    parser.add_argument("--json", type=Path, metavar="FILE", help="measure the known channels")
    options = parser.parse_args(argv)
    if options.lines:
        return asyncio.run(_answer_lines())
    known = load_pairs()
    if missing := set(options.names) - known.keys():
        parser.error(f"unknown pair {min(missing)!r}. Choose from {', '.join(known)}.")
    pairs = [known[name] for name in options.names or known if is_offered(known[name])]
    if not options.json:
        return asyncio.run(_main(pairs))
    found = asyncio.run(measure(pairs, lambda line: print(line, flush=True)))
    options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
