"""Writes docs/results.md from benchmarks/results/, or checks the results and the page.

    python benchmarks/results_page.py           # rewrites docs/results.md
    python benchmarks/results_page.py --check   # changes nothing; exit code 1: a bad result or a stale page

A result must have the keys of report.py, a clean tree, and a commit that is an ancestor of HEAD. A checkout
without the whole history skips the checks of commits, and says so. The mark "old" counts back from
the newest commit that a result names, so that the page changes only when a result changes; `--check` lists
the results that are more than 200 commits behind HEAD, as a note.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))
from report import ROOT, git

from benchmarks.court.verdicts import read_verdicts, table

RESULTS: Final = ROOT / "benchmarks" / "results"
PAGE: Final = ROOT / "docs" / "results.md"
RECENT: Final = 200
"""Commits."""
LONGEST_COMMAND: Final = 120
"""Characters."""
AT_WORDS: Final = {"end": "at the budget's end", "mean": "mean over the curve"}
KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "benchmark": (str,),
    "commit": (str,),
    "is_dirty": (bool, type(None)),
    "machine": (dict,),
    "date": (str,),
    "seeds": (int, list, type(None)),
    "command": (str,),
    "claims": (list,),
}
CLAIM: Final[Mapping[str, tuple[type, ...]]] = {
    "claim": (str,),
    "value": (int, float),
    "unit": (str, type(None)),
    "bar": (str, type(None)),
    "met": (bool, type(None)),
}
HEAD: Final = """\
# Results

`python benchmarks/results_page.py` makes this page from `benchmarks/results/`. A section has the command, the
machine, the commit and the date; a row has one claim. A bar is met unless its cell says **missed**. **Old**:
more than {recent} commits lie between the commit and `{newest}`, the newest of all results.
`git checkout COMMIT` restores a deleted script. Commands show the last part of paths outside the repository,
and no `--out`.
"""


def read_results(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """The results by their path below the folder."""
    files = sorted(folder.rglob("*.json"))
    return {str(file.relative_to(folder)): json.loads(file.read_text(encoding="utf-8")) for file in files}


def wrong_keys(value: Mapping[str, Any], kinds: Mapping[str, tuple[type, ...]]) -> list[str]:
    return [name for name, kind in kinds.items() if name not in value or not isinstance(value[name], kind)]


def problems(results: Mapping[str, dict[str, Any]]) -> list[str]:
    """One sentence for each result that lacks a key or says too little; commits are not looked up."""
    found = []
    for name, result in results.items():
        if missing := wrong_keys(result, KINDS):
            found.append(f"{name}: {', '.join(missing)} missing or of another type; write it with report.py")
            continue
        if not re.fullmatch(r"[0-9a-f]{40}", result["commit"]):
            found.append(f"{name}: commit {result['commit']!r} is not a full hash")
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", result["date"]):
            found.append(f"{name}: date {result['date']!r} is not YYYY-MM-DD")
        if result["is_dirty"]:
            found.append(f"{name}: measured with uncommitted changes; commit them and measure again")
        if not result["claims"]:
            found.append(f"{name}: no claims; a result backs at least one")
        for one in result["claims"]:
            if missing := wrong_keys(one, CLAIM):
                found.append(f"{name}: a claim without {', '.join(missing)}: {one}")
    return found


def has_history() -> bool:
    return git("rev-parse", "--is-shallow-repository") == "false"


def commits_since(commits: Iterable[str]) -> dict[str, int]:
    """The number of commits from each commit to HEAD; commits that are no ancestors of HEAD are left out."""
    found = {}
    for commit in set(commits):
        counts = git("rev-list", "--left-right", "--count", f"{commit}...HEAD") or "1 0"
        ahead, behind = map(int, counts.split())
        if not ahead:
            found[commit] = behind
    return found


def page(results: Mapping[str, dict[str, Any]], since: Mapping[str, int]) -> str:
    """The text of docs/results.md; `since`: see `commits_since`."""
    newest = min(since, key=since.__getitem__)
    sections = []
    for name, result in results.items():
        seeds = result["seeds"]
        number = len(seeds) if isinstance(seeds, list) else seeds or 0
        facts = [
            shown_machine(result),
            " and ".join(f"`{commit[:8]}`" for commit in result.get("commits") or [result["commit"]]),
            result["date"],
            *([f"{number} seed{'s' * (number > 1)}"] if number else []),
            *(["**old**"] if since[result["commit"]] - since[newest] > RECENT else []),
        ]
        command = textwrap.shorten(re.sub(r" --out \S+", "", result["command"]), LONGEST_COMMAND, placeholder=" ...")
        lines = [f"\n## {name.removesuffix('.json')}", "", f"`{command}`: {', '.join(facts)}.", ""]
        is_court = "curves" in result and "arms" in result.get("question", ())
        body = court_table(name, result) if is_court else rows(result["claims"])
        sections.append("\n".join([*lines, *body]) + "\n")
    return HEAD.format(recent=RECENT, newest=newest[:8]) + "".join(sections)


def court_table(name: str, result: Mapping[str, Any]) -> list[str]:
    """Return the table and the figure of a question of the court."""
    question, curves, decisions = read_verdicts(result)
    figure = f"../benchmarks/results/{name.removesuffix('.json')}.svg"
    shown_figure = [f"![{question.question}]({figure})", ""] if (PAGE.parent / figure).exists() else []
    level = f"{100 * (1 - question.level):.1f}%"
    primary = (
        f"Decided by `{question.primary.measure}`, {AT_WORDS[question.primary.at]}, with intervals over seeds at "
        f"{level}; other columns at the budget's end."
    )
    lines = table(question, curves, decisions).splitlines()
    return [lines[0], "", *shown_figure, primary, "", *lines[2:]]


def rows(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of one result: the words that all claims begin with are in its head, once."""
    parts = [re.split(r"(?<=[:,]) ", one["claim"])[:-1] for one in claims if len(claims) > 1]
    shared = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, zip(*parts, strict=False))]
    has_bar = any(one["bar"] for one in claims)
    table = [[" ".join(shared).rstrip(",:") or "claim", "figure", "bar"]]
    for one in claims:
        missed = "**missed**: " if one["met"] is False else ""
        table.append(
            [
                one["claim"].removeprefix("".join(f"{part} " for part in shared)),
                shown(one),
                missed + (one["bar"] or ""),
            ]
        )
    cells = [[cell.replace("|", "\\|") for cell in row[: 2 + has_bar]] for row in table]
    head, *body = ["| " + " | ".join(row) + " |" for row in cells]
    return [head, "|---" * (2 + has_bar) + "|", *body]


def shown(one: Mapping[str, Any]) -> str:
    """Return the figure, with its unit if the claim does not name it."""
    value, unit = one["value"], one["unit"] or ""
    is_whole = float(value).is_integer() or abs(value) >= 1000
    number = f"{value:,.0f}" * is_whole + f"{value:.3g}" * (not is_whole)
    return number if unit in one["claim"].split() else f"{number} {unit}".rstrip()


def shown_machine(result: Mapping[str, Any]) -> str:
    """The accelerator, or the processor with its cores."""
    machine = result["machine"]
    count = machine.get("cores")
    cores = f", {count} core{'s' * (count > 1)}" if count else ""
    return str(result.get("device") or machine.get("cpu", "?") + cores)


def check(results: Mapping[str, dict[str, Any]], written: str) -> list[str]:
    """The problems of the results and the page; prints notes."""
    found = problems(results)
    if found:
        return found
    if not has_history():
        print("results: the history is not whole here; commits and page are not checked")
        return []
    since = commits_since(result["commit"] for result in results.values())
    for name, result in results.items():
        number = since.get(result["commit"])
        if number is None:
            found.append(f"{name}: commit {result['commit'][:8]} is not an ancestor of HEAD; measure again")
        elif number > RECENT:
            print(f"note: {name} was measured {number} commits before HEAD")
    if not found and page(results, since) != written:
        found.append("docs/results.md is stale; run python benchmarks/results_page.py")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; name the problems")
    options = parser.parse_args(arguments)
    results = read_results()
    if options.check:
        found = check(results, PAGE.read_text(encoding="utf-8"))
    else:
        found = problems(results)
        if not found:
            since = commits_since(result["commit"] for result in results.values())
            PAGE.write_text(page(results, since), encoding="utf-8")
    for problem in found:
        print(f"results: {problem}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
