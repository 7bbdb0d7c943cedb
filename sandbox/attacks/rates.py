"""The rates and error rates of the known covert channels.

    number   bits: of a number   error_rate: of the numbers   bits_per_s: of correct numbers, by wall clock
                                                              including the start of both programs
    stream   bits: of a symbol   error_rate: of the bits      bits_per_s: with a perfect code

Both programs are calls of one pool. A stream is measured with each of its slots and the best counts; its
error rate is the upper end of the 95% interval, so that chance contributes nothing.
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rocstar.sandbox.attacks.number import difference, draw, once
from rocstar.sandbox.attacks.pair import Pair, Run, calls_of, flavours_of
from rocstar.sandbox.attacks.stream import Stream, stream
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
                    rows.append(await row_of(pair, run))
                    say(line_of(rows[-1]))
    rows.sort(key=lambda row: row["name"])
    return {"uid": os.geteuid(), "layers": layers, "pairs": rows}


async def row_of(pair: Pair, run: Run) -> Row:
    found = await (_streams if pair.slots else _numbers)(pair, run)
    return {"name": pair.name, "tries": pair.tries, "open": pair.open, "without": list(pair.without), **found}


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
        secret = draw(pair, trials)
        if pair.baseline:
            got = await difference(pair, secret, run, run)
            right += got is not None and offset is not None and got - offset == secret
        else:
            right += (await once(pair, secret, run, run)).split()[:2] == ["GOT", str(secret)]
        trials += 1
    taken_s = time.monotonic() - start
    return {
        **{"kind": "number", "bits": pair.bits, "trials": trials, "error_rate": round(1 - right / trials, 4)},
        **{"bits_per_s": round(right * pair.bits / taken_s, 1)},
    }


def line_of(row: Mapping[str, Any]) -> str:
    what = f"{row['slot_s'] * 1000:g} ms a symbol" if row["kind"] == "stream" else f"{row['trials']} numbers"
    return f"{row['name']:<28}{row['bits_per_s']:12.0f} bit/s, {row['error_rate']:.0%} wrong, {what}"
