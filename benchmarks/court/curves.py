"""The curve of a run: the measures of each evaluation, against what the steps before it have cost.

A measure is SET/NAME:

    solved                    mean correctness of the attempts (avg@k)
    recovered                 solved, of the attempts with a failed call in the first turn
    errors_in_correct         failed calls per call of correct attempts
    errors                    failed calls per call of all attempts
    errors_first, _after_ok, _after_error
                              failed calls per 1,000 generated tokens of turns that call, by what comes before
                              the turn: the task, good results, or a failed call
    misformed                 attempts without exactly one answer, per 1,000 tokens of turns that call nothing
    tokens                    generated tokens of an attempt
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocstar.engine.record.reading import read_records

from .budget import read_spent

FAR = 0.75
"""Share of the budget that a run spends at least."""
Curve = list[dict[str, float]]
"""Rows in the order of steps: `step`, `tokens`, `cpu_s`, and the measures."""


def read_curve(run: Path) -> Curve:
    """Return the curve of a finished run."""
    spent = {0: {"step": 0, "tokens": 0.0, "cpu_s": 0.0}} | {row["step"]: row for row in read_spent(run)}
    curve = []
    for folder in sorted((run / "evaluations").glob("step_*[0-9]")):
        files = sorted((folder / "attempts").glob("*.jsonl"))
        found = {f"{file.stem}/{k}": v for file in files for k, v in measures(read_records(file)).items()}
        curve.append({**spent[int(folder.name.removeprefix("step_"))], **found})
    return curve


def measures(attempts: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the measures of one set; a share without any call is 0."""
    n: Counter[str] = Counter()
    for attempt in attempts:
        is_correct = attempt["outcome"].get("is_correct", False)
        n.update(attempts=1, solved=is_correct, misformed=attempt["num_answers"] != 1)
        lead = "first"
        for turn in attempt["turns"]:
            length = turn["end"] - turn["start"]
            calls = [call for call in turn["calls"] if call["status"] != "not_executed"]
            failed = sum(call["is_error"] for call in calls)
            n["tokens"] += length
            n[f"tokens_{lead if turn['calls'] else 'answer'}"] += length
            n[f"failed_{lead}"] += failed
            for kind in ("", "_correct")[: 1 + is_correct]:
                n[f"calls{kind}"] += len(calls)
                n[f"failed{kind}"] += failed
                n[f"fallen{kind}"] += bool(lead == "first" and failed)
            lead = "after_error" if failed else "after_ok"
    per_token = {
        f"errors_{lead}": 1000 * n[f"failed_{lead}"] / max(1, n[f"tokens_{lead}"])
        for lead in ("first", "after_ok", "after_error")
    }
    return {
        "solved": n["solved"] / max(1, n["attempts"]),
        "recovered": n["fallen_correct"] / max(1, n["fallen"]),
        "errors_in_correct": n["failed_correct"] / max(1, n["calls_correct"]),
        "errors": n["failed"] / max(1, n["calls"]),
        **per_token,
        "misformed": 1000 * n["misformed"] / max(1, n["tokens_answer"]),
        "tokens": n["tokens"] / max(1, n["attempts"]),
    }


def at_end(curve: Sequence[Mapping[str, float]], measure: str, unit: str, budget: float) -> float:
    """Return a measure at the last evaluation, whose step ended nearest to the budget."""
    return points(curve, measure, unit, budget)[-1][1]


def mean_until(curve: Sequence[Mapping[str, float]], measure: str, unit: str, budget: float) -> float:
    """Return the mean of a measure over the spent budget (trapezoids)."""
    pairs = itertools.pairwise(points(curve, measure, unit, budget))
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairs) / curve[-1][unit]


def points(curve: Sequence[Mapping[str, float]], measure: str, unit: str, budget: float) -> list[tuple[float, float]]:
    """Return (spent, measure) by evaluation; one for an arm without steps, which is its cold start. ValueError for a
    curve that ends far from the budget: a step costs more than half of it, or the run did not come to its end."""
    spent = curve[-1][unit] if curve else 0
    if len(curve) != 1 and not FAR * budget <= spent <= (2 - FAR) * budget:
        raise ValueError(f"the curve ends at {spent:g} {unit} of {budget:g}")
    return [(row[unit], row[measure]) for row in curve if measure in row]  # sets may be evaluated at other steps


AT = {"end": at_end, "mean": mean_until}
