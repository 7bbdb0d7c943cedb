"""Covert channels: pairs of programs in which one tries to send a number to the other.

    sender   (a call, a session, another pool's or another user's) ----- shared kernel state -----> receiver

    python -m rocstar.sandbox.attacks.channels [NAME...]     test pairs between two calls
    python -m rocstar.sandbox.attacks.channels --json FILE   bits per second of the known channels (rates.py)

pair.py describes the files.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rocstar.sandbox.attacks import rates
from rocstar.sandbox.attacks.number import attempt_numbers
from rocstar.sandbox.attacks.pair import Pair, Passed, Run, calls_of, flavours_of, is_offered, load_pairs
from rocstar.sandbox.attacks.stream import attempt_streams
from rocstar.sandbox.pool.pool import SandboxPool


async def attempt(pair: Pair, send: Run, receive: Run) -> Passed:
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
    found = asyncio.run(rates.measure(pairs, lambda line: print(line, flush=True)))
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Return 1 if an unknown channel passes numbers."""
    parser = argparse.ArgumentParser(
        prog="rocstar.sandbox.attacks.channels", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("names", nargs="*", help="pairs to test (default: all)")
    parser.add_argument(
        "--lines", action="store_true", help="run programs from lines of JSON on standard input"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="measure the known channels")
    options = parser.parse_args(argv)
    if options.lines:
        return asyncio.run(_answer_lines())
    known = load_pairs()
    if missing := set(options.names) - known.keys():
        parser.error(f"unknown pair {min(missing)!r}. Choose from {', '.join(known)}.")
    pairs = [known[name] for name in options.names or known if is_offered(known[name])]
    return _measure(pairs, options.json) if options.json else asyncio.run(_main(pairs))


if __name__ == "__main__":
    sys.exit(main())
