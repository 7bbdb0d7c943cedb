"""Benchmarks of the sandbox. Each part takes a few minutes and prints a table.

    python benchmarks/bench_sandbox.py flood|forks|sessions [--out FILE]

Without a part it lists them. Exit code 1: a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import uvloop
from sandbox_bench import flood, forks, sessions

PARTS = {"forks": forks, "sessions": sessions, "flood": flood}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="part", metavar="PART")
    for part in PARTS.values():
        part.add_parser(verbs)
    for verb in verbs.choices.values():
        text = "further option of `rocstar sandbox serve`, e.g. --serve-option=--max-live=4"
        verb.add_argument("--serve-option", action="append", default=[], help=text)
        verb.add_argument("--out", type=Path, help="file of the result")
    return parser


def main() -> int:
    parser = build_parser()
    options = parser.parse_args()
    if options.part is None:
        parser.print_help()
        return 0
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(PARTS[options.part].run(options))
    except (FileNotFoundError, ValueError) as error:
        print(f"bench_sandbox: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
