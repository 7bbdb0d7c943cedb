"""BFCL v3: our verdicts against those of its own scorer, on recorded outputs of every question.

    python benchmarks/bfcl_against_upstream.py --upstream PYTHON --data FOLDER [--only CATEGORY ..]

PYTHON is of an environment with `bfcl-eval` (entries.py has the version), FOLDER its `bfcl_eval`. Outputs
are made from the due calls (bfcl_bench/outputs.py, seeded); each is a text as a policy writes it, read by
the engine's parser here and by upstream's handler for the same format there. Then `bfcl evaluate` itself
scores one output of each question, drawn among all, and its table is held against our composed scores.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from bfcl_bench.outputs import conversations, texts

from rocstar.engine.chat.toolcalls import parse_tool_calls
from rocstar.engine.types import Attempt, Scored, Task, Turn
from rocstar.train.evaluation.benchmarks.bfcl.entries import SIZES, VERSION, is_multi_turn, load
from rocstar.train.evaluation.benchmarks.bfcl.judge import FunctionJudge, measures
from rocstar.train.evaluation.benchmarks.bfcl.score import overall

HERE = Path(__file__).parent
RESULT = HERE / "results" / "bfcl_against_upstream.json"
SEED = 20251122


def outputs(tasks: Sequence[Task]) -> Iterator[dict[str, Any]]:
    """Every output, and for each question one of them again as its `mixed` one."""
    for task in tasks:
        rng = Random(f"{SEED} {task.id}")
        category = task.meta["category"]
        if is_multi_turn(category):
            made: list[tuple[str, Any]] = list(conversations(task, rng))
        else:
            made = list(texts(task, rng))
        right = [text for kind, text in made if kind == "due"]
        made.append(("mixed", right[0] if right and rng.random() < 0.6 else rng.choice(made)[1]))
        for kind, text in made:
            yield {"id": task.id, "category": category, "kind": kind, "text": text}


def attempt_of(task: Task, said: Any) -> Attempt:
    """The attempt that a policy makes by writing these texts, turn by turn."""
    written = [text for steps in said for text in steps] if isinstance(said, list) else [said]
    turns = tuple(Turn(start=0, end=0, text=t, stopped=True, calls=parse_tool_calls(t)) for t in written)
    return Attempt(task=task, turns=turns, is_truncated=False)


async def our_verdicts(
    tasks: dict[str, Task], rows: Sequence[dict[str, Any]]
) -> list[tuple[bool, float | None]]:
    """Whether each output is right, and the second column where there is one."""
    judge, verdicts = FunctionJudge(), []
    for row in rows:
        attempt = attempt_of(tasks[row["id"]], row["text"])
        outcome = await judge.score(attempt, deadline=None)
        assert isinstance(outcome, Scored)
        verdicts.append((outcome.is_correct, next(iter(measures(attempt).values()), None)))
    return verdicts


def compared(tasks: Sequence[Task], args: argparse.Namespace) -> dict[str, Any]:
    """Score all outputs twice and count."""
    rows = list(outputs(tasks))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recorded, verdicts = folder / "outputs.jsonl", folder / "verdicts.jsonl"
        recorded.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        command = [
            args.upstream,
            str(HERE / "bfcl_bench" / "upstream_scorer.py"),
            *map(str, (recorded, verdicts, folder)),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        theirs = [json.loads(line) for line in verdicts.read_text().splitlines()]
        table: dict[str, str] = {}
        for part in ("overall", "non_live", "live", "multi_turn"):
            with (folder / "scores" / f"data_{part}.csv").open(encoding="utf-8") as file:
                table |= next(csv.DictReader(file))
    ours = asyncio.run(our_verdicts({task.id: task for task in tasks}, rows))
    return counted(rows, ours, theirs) | {"table": tables(rows, ours, table)}


def counted(rows: Sequence[dict[str, Any]], ours: Sequence[Any], theirs: Sequence[bool]) -> dict[str, Any]:
    by_category: dict[str, Counter[str]] = defaultdict(Counter)
    differences, golds = list[tuple[Any, ...]](), dict[str, bool]()
    for row, (right, silent), expected in zip(rows, ours, theirs, strict=True):
        count = by_category[row["category"]]
        count.update(outputs=1, right=int(expected), differences=int(right is not expected))
        if silent is not None:
            count.update(upstream_abstained=int(expected), no_call_attempted=int(silent))
        if right is not expected:
            differences.append((row["id"], row["kind"], row["text"], right))
        if row["kind"] == "due":
            golds[row["id"]] = expected
    for one in differences[:20]:
        print("differs:", *one)
    return {
        "upstream": f"bfcl-eval {VERSION}",
        "questions": len({row["id"] for row in rows}),
        "outputs": len(rows),
        "right": sum(theirs),
        "differences": len(differences),
        "due_outputs": len(golds),
        "due_outputs_right": sum(golds.values()),
        "without_right_output": [name for name, right in golds.items() if not right],
        "categories": {
            category: dict(by_category[category]) for category in SIZES if category in by_category
        },
    }


def tables(rows: Sequence[dict[str, Any]], ours: Sequence[Any], table: dict[str, str]) -> dict[str, Any]:
    """Composed scores of the mixed outputs, in percent: ours, and upstream's as it prints them."""
    rights: dict[str, list[float]] = defaultdict(list)
    for row, (right, _) in zip(rows, ours, strict=True):
        if row["kind"] == "mixed":
            rights[row["category"]].append(float(right))
    composed = overall({category: fmean(values) for category, values in rights.items()})
    names = {
        "non_live": "Non_Live Overall Acc",
        "live": "Live Overall Acc",
        "multi_turn": "Multi Turn Overall Acc",
        "overall": "Overall Acc",
    }
    printed = {ours: table[theirs] for ours, theirs in names.items() if theirs in table}
    return {"ours": {name: f"{100 * value:.3f}%" for name, value in composed.items()}, "upstream": printed}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--upstream", required=True, help="python of an environment with bfcl-eval")
    parser.add_argument("--data", required=True, help="the folder bfcl_eval of that environment")
    parser.add_argument("--only", nargs="+", choices=list(SIZES), help="categories; all of them by default")
    parser.add_argument("--json", type=Path, default=RESULT)
    args = parser.parse_args()
    tasks = [t for t in load(Path(args.data)) if not args.only or t.meta["category"] in args.only]
    found = compared(tasks, args)
    args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({k: v for k, v in found.items() if k != "categories"}, indent=1))


if __name__ == "__main__":
    main()
