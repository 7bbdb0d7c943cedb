"""A run on word problems, as its folder tells it: steps, held-out questions, errors of correct attempts.

    FOLDER/run  config.toml, manifest.json ──> how it was made
                metrics.jsonl, trajectories/ ──> each step: attempts, tokens, erroneous calls
                evaluations/step_N/results.json ──> each evaluation, question by question

Nothing is written. A run that goes on is read as far as it came.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from quickstart_seeds import rows

from rocstar.engine.record.reading import read_records, record_files

HELD_OUT = "heldout"
SET = ("name", "samples_per_task", "temperature", "limit")
"""Of an evaluation set, what tells how it is asked."""
APART = ("eval", "sft", "checkpoint", "run.name", "stages.0.data.source", "stages.0.steps")
"""Fields that change nothing of a step that begins with a finished cold start, or are compared otherwise."""

Errors = dict[str, tuple[int, int]]
"""Of a task's correct attempts: erroneous calls, and all calls."""


class UnfitRunError(Exception):
    """A folder from which nothing can be compared: what, why, and what to give in its place."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The held-out questions at one step."""

    shares: dict[str, float]
    """Question -> share of its attempts that were right."""
    attempts: int
    """At all questions together."""
    errors: Errors


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of reinforcement, all of its attempts, whichever of them the learner saw."""

    attempts: int
    learned: int
    tokens: int
    """Generated."""
    reward: float
    rate: float
    """Of learning; 0 where no group had a signal."""
    errors: Errors
    """Of each task of the step; of one without a correct attempt no calls."""


@dataclass(frozen=True, kw_only=True)
class WordsRun:
    """A run up to its last evaluation, or as far as it came behind it."""

    config: dict[str, Any]
    starts: list[dict[str, Any]]
    """Commit, whether it had changes, and how it ended, of each time that it was begun or gone on with."""
    steps: list[Step]
    evaluations: dict[int, Evaluation]

    @property
    def tokens(self) -> list[int]:
        """Generated since the first step, before it (0) and after each."""
        return [0, *np.cumsum([step.tokens for step in self.steps]).tolist()]

    @property
    def last_evaluation(self) -> int:
        return max(self.evaluations)


def read_run(directory: Path) -> WordsRun:
    """The run of a folder. UnfitRunError where there is none, or no evaluation before its first step."""
    if not (directory / "metrics.jsonl").is_file():
        raise UnfitRunError(f"{directory} holds no run: it has no metrics.jsonl")
    manifest = json.loads((directory / "manifest.json").read_text())
    found = evaluations_of(directory)
    if 0 not in found:
        raise UnfitRunError(f"{directory} has no evaluation on {HELD_OUT!r} before its first step")
    return WordsRun(
        config=tomllib.loads((directory / "config.toml").read_text()),
        starts=[{name: one[name] for name in ("commit", "dirty", "status")} for one in manifest["starts"]],
        steps=steps_of(directory),
        evaluations=found,
    )


def evaluations_of(directory: Path) -> dict[int, Evaluation]:
    """By step. A question of which every attempt failed is in none."""
    found = {}
    for file in (directory / "evaluations").glob("step_*/results.json"):
        questions = json.loads(file.read_text())["sets"][HELD_OUT]["questions"]
        known = {name: [a for a in one["attempts"] if a is not None] for name, one in questions.items()}
        found[int(file.parent.name.removeprefix("step_"))] = Evaluation(
            shares={name: fmean(attempts) for name, attempts in known.items() if attempts},
            attempts=sum(map(len, known.values())),
            errors={name: _of_question(one) for name, one in questions.items()},
        )
    return found


def _of_question(question: Mapping[str, Any]) -> tuple[int, int]:
    right = [k for k, is_right in enumerate(question["attempts"]) if is_right]
    return sum(question["errors"][k] for k in right), sum(question["calls"][k] for k in right)


def steps_of(directory: Path) -> list[Step]:
    """Those of which metrics and records are there."""
    files = record_files(directory / "trajectories")
    return [
        Step(
            attempts=round(row["ledger/generated"]),
            learned=round(row["ledger/kept"]),
            tokens=round(row["tokens/generated"]),
            reward=row.get("reward/mean", 0.0),
            rate=row.get("optim/lr", 0.0),
            errors=_of_records(files[row["step"]]),
        )
        for row in rows(directory, "rl")
        if row["step"] in files
    ]


def _of_records(file: Path) -> Errors:
    """Calls that were not executed are in no number."""
    found: Errors = {}
    for record in read_records(file):
        errors, calls = found.get(record["task"]["id"], (0, 0))
        if record["outcome"].get("is_correct"):
            made = [c for turn in record["turns"] for c in turn["calls"] if c["status"] != "not_executed"]
            errors, calls = errors + sum(c["is_error"] for c in made), calls + len(made)
        found[record["task"]["id"]] = (errors, calls)
    return found


def stretches(steps: list[Step]) -> list[dict[str, float]]:
    """Runs of steps with as many attempts: first and last of them, and the highest rate of learning."""
    told = []
    for attempts, group in groupby(enumerate(steps, 1), key=lambda one: one[1].attempts):
        numbered = list(group)
        rate = max(step.rate for _, step in numbered)
        told.append({"first": numbered[0][0], "last": numbered[-1][0], "attempts": attempts, "rate": rate})
    return told


def differing_fields(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Fields of two recipes that could change a step, with both values; paths are not compared."""
    of_a, of_b = flat(a), flat(b)
    names = sorted(name for name in of_a.keys() | of_b.keys() if not name.startswith(APART))
    pairs = {name: [of_a.get(name), of_b.get(name)] for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1] and name != "model.path"}


def flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """`{"rl.lr": 1e-5, "stages.0.steps": 4}` of nested tables and lists of tables."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{before}{key}"
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            value = {str(k): item for k, item in enumerate(value)}
        found |= flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return found


def held_out_set(config: Mapping[str, Any], *, every: int) -> str:
    """The override that has a run evaluated on the held-out questions alone, after every so many steps."""
    (one,) = [found for found in config["eval"] if found["name"] == HELD_OUT]
    fields = [f"{name} = {json.dumps(one[name])}" for name in SET]
    source = json.dumps(one["data"]["source"])
    return f"--eval=[{{{', '.join(fields)}, every = {every}, data = {{source = {source}}}}}]"
