"""Fills measured figures into the Markdown pages from benchmarks/results/, or checks that they are filled in.

    python benchmarks/fill_figures.py           # rewrites README.md and docs/
    python benchmarks/fill_figures.py --check   # changes nothing, names each stale figure; exit code 1 if any

A figure is the number (with its unit, where the format writes one) directly before a comment:

    The step is 2.72<!--step_vs_trl bars[0].value; .2f--> times as fast.

The comment has a file of the results folder without its .json, a path into it, and after `; ` a format:

    file path; format
    file operation path; format           operation: min, max, mean, median, sum or len over a list of numbers

    path      keys joined by dots; a key may hold dots and spaces. `[0]` and `[-1]` take an element of a list,
              `[program=print]` the one whose `program` is `print`, or else begins so, `[a=1, b=2]` where both
              fit. A key after a list without brackets is taken of all its elements.
    format    what Python's format() takes (`.2f`, `,.0f`, `.1%`), or `minutes` for `2 min 24 s`; before it a
              factor may stand: `*1000 .0f`, `/1048576 .1f`

Lines within fenced code are left alone. Exit code 2 for a file, key or format that does not exist, which is
named with its page and line.
"""

from __future__ import annotations

import argparse
import decimal
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"

FIGURE: Final = re.compile(
    r"(?P<old>\d+ min \d+ s|[-+]?\d[\d,.]*(?:e[-+]?\d+)?%?)?"
    r"<!--(?P<file>\w+) (?P<path>[^;>]+?); (?P<form>[^>]+?)-->"
)
MARK: Final = re.compile(r"<!--\w+[^>]*;[^>]*-->")
"""What is meant as a mark, well-formed or not. An ordinary comment begins with a space."""

OPERATIONS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "min": min,
    "max": max,
    "mean": statistics.fmean,
    "median": statistics.median,
    "sum": sum,
    "len": len,
}


class FigureError(ValueError):
    """A mark that cannot be filled in: page, line, and what is not there."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0, or 1 where --check found a stale figure, or 2 for a mark that cannot be filled in."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", type=Path, help="default: README.md and all pages of docs/")
    parser.add_argument("--check", action="store_true", help="change nothing; name each stale figure")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    options = parser.parse_args(arguments)
    stale = 0
    try:
        for page in options.pages or pages():
            stale += fill_page(page, options.results, check=options.check)
    except FigureError as error:
        print(f"fill_figures: {error}", file=sys.stderr)
        return 2
    return int(options.check and stale > 0)


def pages() -> list[Path]:
    """The pages that may hold figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def fill_page(page: Path, results: Path, *, check: bool) -> int:
    """Number of figures of a page that were stale. Raises FigureError."""
    text = page.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    stale = 0
    for k in lines_outside_of_code(lines):
        new, changes = fill_line(lines[k], results, f"{page}:{k + 1}")
        for change in changes:
            print(f"{page}:{k + 1}: {change}")
        stale += len(changes)
        lines[k] = new
    if stale and not check:
        page.write_text("".join(lines), encoding="utf-8")
    return stale


def lines_outside_of_code(lines: Sequence[str]) -> Iterator[int]:
    fence = ""
    for k, line in enumerate(lines):
        mark = re.match(r"\s*(`{3,}|~{3,})", line)
        if mark and not fence:
            fence = mark[1]
        elif fence:
            if line.strip() == fence:
                fence = ""
        else:
            yield k


def fill_line(line: str, results: Path, where: str) -> tuple[str, list[str]]:
    """The line with its figures, and a sentence for each that was another."""
    changes: list[str] = []
    num_filled = 0

    def filled(found: re.Match[str]) -> str:
        nonlocal num_filled
        num_filled += 1
        mark = found[0][len(found["old"] or "") :]
        try:
            new = shown(value_of(results / f"{found['file']}.json", found["path"]), found["form"])
        except (KeyError, ValueError, TypeError) as error:
            raise FigureError(f"{where}: {mark}: {error.args[0] if error.args else error}") from None
        if new != found["old"]:
            changes.append(f"{found['old'] or 'nothing'} stands where {found['file']}.json has {new}")
        return new + mark

    text = FIGURE.sub(filled, line)
    if num_filled != len(MARK.findall(line)):
        raise FigureError(f"{where}: a mark has not the form <!--file path; format--> behind a figure")
    return text, changes


def value_of(file: Path, path: str) -> Any:
    """What stands at a path of a results file, with its operation applied. Raises KeyError, ValueError."""
    data = _loaded(file)
    word, _, rest = path.partition(" ")
    if word in OPERATIONS and rest:
        values = _at(data, rest, rest)
        if not isinstance(values, list):
            raise ValueError(f"{rest!r} is no list, so it has no {word}")
        return OPERATIONS[word](values)
    return _at(data, path, path)


def shown(value: Any, form: str) -> str:
    """The value in a format. Raises ValueError, TypeError."""
    factor = re.match(r"([*/])\s*([\d.]+(?:e-?\d+)?) +", form)
    if factor:
        value = value * float(factor[2]) if factor[1] == "*" else value / float(factor[2])
        form = form[factor.end() :]
    if form == "minutes":
        minutes, seconds = divmod(round(value), 60)
        return f"{minutes} min {seconds} s"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    if form.endswith("d"):
        return format(value, form)
    with decimal.localcontext(rounding=decimal.ROUND_HALF_UP):  # 842.5 is 843, as a reader would round it
        text = format(decimal.Decimal(repr(float(value))), form)
    return re.sub(r"e([+-])0+(?=\d)", r"e\1", text)


@cache
def _loaded(file: Path) -> Any:
    if not file.is_file():
        raise KeyError(f"there is no {file.name} in {file.parent}")
    return json.loads(file.read_text(encoding="utf-8"))


def _at(node: Any, path: str, whole: str) -> Any:
    if not path:
        return node
    if path.startswith("["):
        return _element(node, path, whole)
    path = path.removeprefix(".")
    if isinstance(node, list):
        return [_at(each, path, whole) for each in node]
    if isinstance(node, dict):
        for key in sorted(node, key=len, reverse=True):
            if path.startswith(key) and path[len(key) : len(key) + 1] in ("", ".", "["):
                return _at(node[key], path[len(key) :], whole)
    there = ", ".join(map(repr, node)) if isinstance(node, dict) else f"only {node!r}"
    raise KeyError(f"nothing is at {path!r} of {whole!r}; there is {there}"[:300])


def _element(node: Any, path: str, whole: str) -> Any:
    if not isinstance(node, list):
        raise KeyError(f"no list is at {path!r} of {whole!r}")
    inner, _, rest = path[1:].partition("]")
    if re.fullmatch(r"-?\d+", inner):
        if not -len(node) <= int(inner) < len(node):
            raise KeyError(f"{inner} of {whole!r} is outside of a list of {len(node)}")
        return _at(node[int(inner)], rest, whole)
    wanted = dict(part.partition("=")[::2] for part in re.split(r", (?=\w+=)", inner))
    fitting = _fitting(node, wanted, str.__eq__) or _fitting(node, wanted, str.startswith)
    if len(fitting) != 1:
        raise KeyError(f"{len(fitting)} elements of {whole!r} fit {inner!r}, not one")
    return _at(fitting[0], rest, whole)


def _fitting(node: list[Any], wanted: Mapping[str, str], fits: Callable[[str, str], bool]) -> list[Any]:
    return [
        each for each in node if all(fits(str(each.get(key, "")), value) for key, value in wanted.items())
    ]


if __name__ == "__main__":
    sys.exit(main())
