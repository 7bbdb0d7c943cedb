"""The results of a run in numbers and ten trajectories: summary.json, trajectories.md.

    python examples/smollm2_words/summary.py FOLDER      also of a run that is not finished

Before and after are the first and the last evaluation: after the cold start, and after the last step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocstar.engine.record.reading import read_records

sys.path.insert(0, str(Path(__file__).parents[1]))
import phases

TOLD = (
    "k",
    "num_questions",
    "avg",
    "interval",
    "failed",
    "truncated",
    "unextracted",
    "tokens_mean",
    "turns_mean",
    "calls_mean",
    "tool_error_share",
)
"""The keys of a set in results.json."""
CURVES = (
    "reward/mean",
    "tool/error_share_in_correct",
    "tool/executed_share",
    "seq_len/mean",
    "groups/no_signal",
    "entropy/mean",
    "mismatch_kl/mean",
    "tokens/generated",
    "tokens/loss",
    "time/step",
    "time/generate",
    "time/learn",
)
"""The metrics of every step."""
PAIRS = {"heldout": 3, "unseen": 2}
"""Number of questions of each set whose first attempts before and after are shown, each of another kind."""
Record = Mapping[str, Any]


def write(out: Path) -> None:
    """Write the three files. Raise PhaseFailed if the run has no evaluation."""
    run = out / "run"
    found = evaluations(run)
    if not found:
        print(f"{run} has no evaluation: nothing to tell", file=sys.stderr)
        raise phases.PhaseFailed(2)
    before, after = found[0], found[-1]
    steps = [row for row in _rows(run) if row["phase"] == "rl"]
    told: dict[str, Any] = {
        "rates": json.loads((out / "rates.json").read_text()),
        "tasks": json.loads((out / "tasks" / "funnel.json").read_text()),
        "cold_start": _cold(out / "cold"),
        "before": {name: _set(before, name) for name in _sets(before)},
        "steps": len(steps),
        "curves": {name: [row.get(name) for row in steps] for name in CURVES if any(name in r for r in steps)},
        "quarters": _quarters(steps),
        "seconds": {phase: _seconds(out / phase) for phase in ("cold", "run")},
    }
    if after != before:
        told["after"] = {name: _set(after, name) for name in _sets(after)}
        told["kinds"] = _kinds(before, after)
        told["compare"] = _compared(before, after)
        (out / "trajectories.md").write_text(_trajectories(before, after), encoding="utf-8")
    (out / "summary.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    for name in told.get("after", {}):
        first, last = told["before"][name], told["after"][name]
        print(f"{name}: avg@{first['k']} {first['avg']:.3f} -> {last['avg']:.3f}")
    print(f"everything in numbers: {out / 'summary.json'}; to read: {out / 'trajectories.md'}")


def evaluations(run: Path) -> list[Path]:
    """The finished evaluations of a run, by step."""
    found = (run / "evaluations").glob("step_*")
    return sorted((p for p in found if (p / "results.json").is_file()), key=lambda path: int(path.name[5:]))


# ---------------------------------------------------------------- numbers


def _rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def _cold(run: Path) -> dict[str, Any]:
    losses = [row["loss/sft"] for row in _rows(run) if row["phase"] == "sft"]
    return {"loss_first": losses[0], "loss_last": losses[-1]}


def _seconds(run: Path) -> dict[str, float]:
    """The number of starts and resumes of a run, and its wall time."""
    starts = json.loads((run / "manifest.json").read_text())["starts"]
    return {"starts": len(starts), "wall": _rows(run)[-1]["time_s"]}


def _sets(evaluation: Path) -> list[str]:
    return sorted(json.loads((evaluation / "results.json").read_text())["sets"])


def _set(evaluation: Path, name: str) -> dict[str, Any]:
    told = json.loads((evaluation / "results.json").read_text())["sets"][name]
    correct = [record for record in _attempts(evaluation, name) if _is_correct(record)]
    calls = [call for record in correct for turn in record["turns"] for call in turn["calls"]]
    errors = sum(call["is_error"] for call in calls)
    return {
        **{field: told[field] for field in TOLD if field in told},
        "correct": len(correct),
        "calls_in_correct": len(calls),
        "errors_in_correct": errors,
        "error_share_in_correct": errors / len(calls) if calls else None,
    }


def _kinds(before: Path, after: Path) -> dict[str, dict[str, float]]:
    """The share of correct attempts of each kind of the own sets."""
    kinds: dict[str, dict[str, float]] = {}
    for when, evaluation in (("before", before), ("after", after)):
        for name in _sets(evaluation):
            verdicts: dict[str, list[bool]] = {}
            for record in _attempts(evaluation, name):
                verdicts.setdefault(record["task"]["source"], []).append(_is_correct(record))
            for kind, found in verdicts.items():
                kinds.setdefault(kind, {})[when] = statistics.fmean(found)
                kinds[kind]["attempts"] = len(found)
    return kinds


def _quarters(steps: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Means over the first and the last quarter of the steps."""
    quarter = max(1, len(steps) // 4)
    told = {}
    for name in ("reward/mean", "tool/error_share_in_correct", "time/step"):
        values = [row[name] for row in steps if row.get(name) is not None]
        if values:
            told[name] = {"first": statistics.fmean(values[:quarter]), "last": statistics.fmean(values[-quarter:])}
    return told


def _compared(before: Path, after: Path) -> Any:
    """The paired comparison of all sets."""
    compared = phases.told("compare", str(before), str(after))
    return {key: value for key, value in compared.items() if key not in ("a", "b")}


# ---------------------------------------------------------------- trajectories


def _attempts(evaluation: Path, name: str) -> Iterator[Record]:
    return read_records(evaluation / "attempts" / f"{name}.jsonl")


def _is_correct(record: Record) -> bool:
    return bool(record["outcome"].get("is_correct"))


def _trajectories(before: Path, after: Path) -> str:
    """The first attempts at five questions, before and after, chosen by the rule in the text."""
    parts = [
        "# Ten trajectories",
        "",
        "The first attempts at five questions, after the cold start and after reinforcement: of three",
        "trained kinds the first question that was answered wrongly before, of two others the first one.",
    ]
    for first, last in _pairs(before, after):
        task = first["task"]
        parts += ["", f"## {task['source']}", "", *_quoted(task["question"]), "", f"Answer: {task['answer']}"]
        for when, record in (("before", first), ("after", last)):
            verdict = "correct" if _is_correct(record) else "wrong"
            parts += ["", f"{when}: {verdict}", "", "```text", *_said(record), "```"]
    return "\n".join(parts) + "\n"


def _pairs(before: Path, after: Path) -> Iterator[tuple[Record, Record]]:
    for name, number in PAIRS.items():
        last = {r["task"]["id"]: r for r in _attempts(after, name) if r["sibling"] == 0}
        shown: set[str] = set()
        for record in _attempts(before, name):
            kind, passes = record["task"]["source"], name == "heldout" and _is_correct(record)
            if len(shown) < number and kind not in shown and record["sibling"] == 0 and not passes:
                shown.add(kind)
                yield record, last[record["task"]["id"]]


def _quoted(text: str) -> list[str]:
    return [f"> {line}".rstrip() for line in text.splitlines()]


def _said(record: Record) -> list[str]:
    """The text of policy and tools, in order."""
    lines = []
    for segment in record["segments"]:
        if segment["start"] and segment["origin"] != "prompt":
            lines += [f"[{segment['origin']}]", *segment["text"].strip().splitlines()]
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args().folder
    sys.exit(phases.exit_code_of(lambda: write(folder)))
