"""From raw rows to a report in one command, on two CPU cores in some minutes.

    python examples/report_cpu/run.py --out runs/report_cpu
    python examples/report_cpu/run.py --out runs/report_cpu --dry-run

    raw/ ──rocstar data build──> tasks/, conversations/ ──rocstar train──> run/: cold start, stages, exam
                                                             ├──rocstar compare──> exam before and after
                                                             └──rocstar analyse──> analysis.html

Existing files are not made again, so the same command resumes. The folder has all files of each phase for the
verbs above. To use your own raw rows, put problems.jsonl, exam.jsonl and conversations.jsonl into FOLDER/raw
first. Other options set recipe fields: --stages.0.steps=4.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from rocstar.train.recipe.load import load_recipe

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import raw  # noqa: E402
from phases import do, exit_code_of, told, train, write_rows  # noqa: E402

RECIPE = HERE.parents[1] / "recipes" / "report_cpu.toml"
BUILDS = ("tasks", "conversations")
EXAM, PROBLEMS, TALK_PUZZLES, TALKS = 20, 60, 1_500, 12_000
"""Puzzles of each family in the exam, in the problems, in conversations; and conversations."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the missing phases; return the exit code of the verb that failed, 0 if none did."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--exam", type=int, default=EXAM, metavar="N", help="puzzles of a family in the exam")
    parser.add_argument("--problems", type=int, default=PROBLEMS, metavar="N", help="in the raw problems")
    parser.add_argument("--conversations", type=int, default=TALKS, metavar="N", help="raw conversations")
    parser.add_argument("--dry-run", action="store_true", help="build the data; check all else")
    options, overrides = parser.parse_known_args(arguments)
    return exit_code_of(lambda: _phases(options, overrides))


def _phases(options: argparse.Namespace, overrides: list[str]) -> None:
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    for file in (RECIPE, *(HERE / f"{name}.toml" for name in BUILDS)):
        shutil.copy(file, out)
    recipe = out / RECIPE.name
    _raw_rows(out / "raw", recipe, options)
    for name in BUILDS:
        if not (out / name / "funnel.json").exists():
            do("data", "build", str(out / f"{name}.toml"), "--out", str(out / name))
    if options.dry_run:
        do("train", str(recipe), "--output-dir", str(out / "run"), *overrides, "--dry-run")
        return
    train(recipe, out / "run", overrides)
    _report(out)


def _raw_rows(folder: Path, recipe: Path, options: argparse.Namespace) -> None:
    """The three files, those that are not there."""
    if not (folder / "exam.jsonl").exists():
        write_rows(folder / "exam.jsonl", raw.exam(options.exam))
    if not (folder / "problems.jsonl").exists():
        asked = [json.loads(line) for line in (folder / "exam.jsonl").read_text().splitlines()]
        write_rows(folder / "problems.jsonl", raw.problems(options.problems, asked))
    if not (folder / "conversations.jsonl").exists():
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            each = min(TALK_PUZZLES, options.conversations)
            rows = runner.run(raw.conversations(load_recipe(recipe), each, options.conversations))
        write_rows(folder / "conversations.jsonl", rows)


def _report(out: Path) -> None:
    """Write the results to summary.json and print them."""
    steps = sorted((out / "run" / "evaluations").glob("step_*"), key=lambda path: int(path.name[5:]))
    before, after = steps[0], steps[-1]
    exam = told("compare", str(before), str(after))
    attempts = after / "attempts" / "exam.jsonl"
    page = out / "analysis.html"
    analysis = told("analyse", str(attempts), "--out", str(page), "--force")
    summary = {
        "data": {name: json.loads((out / name / "funnel.json").read_text()) for name in BUILDS},
        "exam": exam,
        "tool_errors": _tool_errors(out / "run"),
        "analysis": analysis,
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    do("data", "show", str(out / "tasks"), "--svg", str(out / "tasks.svg"), "--force")
    do("compare", str(before), str(after))
    print("\n".join([*analysis["says"], "", f"curves and trajectories: {out / 'run' / 'report.html'}"]))
    print(f"where it was uncertain: {page}\neverything in numbers: {out / 'summary.json'}")


def _tool_errors(run: Path) -> dict[str, float | None]:
    """The share of erroneous calls in correct trajectories, mean of the first and last quarter of steps."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    name = "tool/error_share_in_correct"
    shares = [row[name] for row in lines if row["phase"] == "rl" and row.get(name) is not None]
    quarter = max(1, len(shares) // 4)
    parts = {"first_quarter": shares[:quarter], "last_quarter": shares[-quarter:]}
    return {part: sum(of) / len(of) if of else None for part, of in parts.items()}


if __name__ == "__main__":
    sys.exit(main())
