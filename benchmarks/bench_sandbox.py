"""Benchmarks of the sandbox. Each part takes a few minutes and prints a table.

    python benchmarks/bench_sandbox.py flood|forks [--out FILE]

Exit code 1: a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import uvloop
from sandbox_bench import flood, forks

PARTS = {"forks": forks, "flood": flood}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="part", metavar="PART", required=True)
    for part in PARTS.values():
        part.add_parser(verbs)
    for verb in verbs.choices.values():
        text = "further option of `rocstar sandbox serve`, e.g. --serve-option=--max-live=4"
        verb.add_argument("--serve-option", action="append", default=[], help=text)
        verb.add_argument("--out", type=Path, help="file of the result")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(PARTS[options.part].run(options))


if __name__ == "__main__":
    sys.exit(main())
