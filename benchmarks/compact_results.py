"""Writes the committed results with a row of a table on one line, or checks that they are so.

    python benchmarks/compact_results.py           # rewrites benchmarks/results/*.json; no value changes
    python benchmarks/compact_results.py --check   # names each file that is not compact; exit code 1 if any

The benchmarks write one number per line, so a new result was a change of thousands of lines in which nobody
could see what moved.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).parent / "results"
WIDTH: Final = 160
"""Of a line of a list of numbers. An object of plain values is one line, however long."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, help="default: all of benchmarks/results/")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; name each file that is not compact"
    )
    options = parser.parse_args(arguments)
    found = 0
    for file in options.files or sorted(RESULTS.glob("*.json")):
        text = file.read_text(encoding="utf-8")
        new = compact(json.loads(text)) + "\n"
        if new != text:
            found += 1
            print(f"{file} is not compact" if options.check else f"wrote {file}")
            if not options.check:
                file.write_text(new, encoding="utf-8")
    return int(options.check and found > 0)


def wrapped(text: str, pad: str) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=pad,
        subsequent_indent=pad,
        break_on_hyphens=False,
        break_long_words=False,
    )


def compact(value: Any, depth: int = 0) -> str:
    """JSON text of a value: plain lists and objects on one line, others with an item on each."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    plain = not any(isinstance(item, dict | list) and item for item in items)
    text = json.dumps(value)
    pad = " " * (depth + 1)
    if plain and isinstance(value, list) and len(text) + depth > WIDTH:
        if any(isinstance(item, str) for item in value):  # a text must not be broken at its spaces
            return text
        return f"[\n{wrapped(text[1:-1], pad)}\n{pad[1:]}]"
    if plain or len(text) + depth <= WIDTH // 2:
        return text
    if isinstance(value, dict):
        lines = [f"{pad}{json.dumps(key)}: {compact(item, depth + 1)}" for key, item in value.items()]
    else:
        lines = [f"{pad}{compact(item, depth + 1)}" for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return "\n".join([opening, ",\n".join(lines), f"{pad[1:]}{closing}"])


if __name__ == "__main__":
    sys.exit(main())
