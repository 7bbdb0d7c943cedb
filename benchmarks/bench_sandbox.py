"""Benchmarks of the sandbox. Each part takes a few minutes, runs alone, prints a table and writes JSON.

    python benchmarks/bench_sandbox.py cpu --data llm_python_programs.jsonl
    python benchmarks/bench_sandbox.py peers --code-judge DIR --data llm_python_programs.jsonl
    python benchmarks/bench_sandbox.py forks|sessions|layers|open-loop|flood|holds|passes

Without a part it lists them. docs/measured/sandbox.md says what each measures. Exit status 1 says
that a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import uvloop
from sandbox_bench import cpu, flood, forks, holds, layers, open_loop, passes, peers, sessions

PARTS = {
    "cpu": cpu,
    "peers": peers,
    "forks": forks,
    "sessions": sessions,
    "layers": layers,
    "open-loop": open_loop,
    "flood": flood,
    "holds": holds,
    "passes": passes,
}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="part", metavar="PART")
    for part in PARTS.values():
        part.add_parser(verbs)
    for name, verb in verbs.choices.items():
        default = Path(__file__).parent / "results" / f"sandbox_{name.replace('-', '_')}.json"
        if name != "layers":
            text = "further option of `rocstar sandbox serve`, e.g. --serve-option=--max-live=4"
            verb.add_argument("--serve-option", action="append", default=[], help=text)
        verb.add_argument("--out", type=Path, default=default, help="where the JSON goes")
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
