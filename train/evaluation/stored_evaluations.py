"""Evaluations on disk, of rocstar or of others, as scores of attempts by set and question.

    RUN/                         its evaluations/, one for each evaluated step
    RUN/checkpoints/step_N/      the evaluation of the run at that step
    RUN/evaluations/step_N       one of them
    FOLDER/results.json          an evaluation with all its sets
    FILE.csv, FILE.jsonl         a table of per-question results

    set,question,score            a CSV with a header, or JSON Lines with these members
    set,question,attempts         score: the share of correct attempts, 0 to 1
                                  attempts: each attempt; CSV `1 0 1 failed`, JSON [true, false, true, null]

`set` is optional; a question has one row. Trajectory records are not read.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rocstar.train.evaluation.tables import read_results
from rocstar.train.recipe.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvaluation:
    """The scores of a stored evaluation."""

    path: Path
    step: int | None
    """The step of the run, or None for an evaluation without a run."""
    sets: Mapping[str, Attempted]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationLocation:
    """One evaluation on disk, or one for each evaluated step of a run."""

    path: Path
    by_step: Mapping[int | None, Path]

    @property
    def is_run(self) -> bool:
        return None not in self.by_step

    def read(self, step: int | None) -> StoredEvaluation:
        """Read the evaluation at a step of the run. ConfigError if there is none, or it cannot be read."""
        if not self.is_run:
            step = None
        elif step not in self.by_step:
            known = ", ".join(str(s) for s in sorted(s for s in self.by_step if s is not None)[-8:])
            raise ConfigError(f"{str(self.path)!r} was not evaluated at step {step}; it was at {known}")
        file = self.by_step[step]
        sets = load_table(file) if file.suffix in SUFFIXES else _sets(file)
        return StoredEvaluation(path=file, step=step, sets=sets)


def find_evaluations(path: Path) -> EvaluationLocation:
    """Find the evaluations at a path. ConfigError if there are none."""
    if path.is_file():
        if path.suffix not in (*SUFFIXES, ".json"):
            raise ConfigError(f"{str(path)!r} is not an evaluation: a file ends in .json, .csv or .jsonl")
        return EvaluationLocation(path=path, by_step={None: path})
    if not path.exists():
        raise ConfigError(f"{str(path)!r} does not exist. Pass a run, a checkpoint, an evaluation or a table.")
    if (path / "results.json").is_file():
        return EvaluationLocation(path=path, by_step={None: path / "results.json"})
    whole = path.absolute()
    if whole.parent.name == "checkpoints" and (found := re.fullmatch(r"step_(\d+)", whole.name)):
        step, run = int(found[1]), find_evaluations(whole.parent.parent)
        if step not in run.by_step:
            raise ConfigError(f"the run of {str(path)!r} was not evaluated at step {step}")
        return EvaluationLocation(path=path, by_step={step: run.by_step[step]})
    by_step: dict[int | None, Path] = {}
    for one in (path / "evaluations").glob("step_*"):
        if (named := re.fullmatch(r"step_(\d+)", one.name)) and (one / "results.json").is_file():
            by_step[int(named[1])] = one / "results.json"
    if by_step:
        return EvaluationLocation(path=path, by_step=by_step)
    raise ConfigError(
        f"{str(path)!r} holds no evaluation: neither results.json nor evaluations/step_N; "
        "pass an evaluated run, or the folder of `rocstar eval --out`"
    )


def match_evaluations(
    a: EvaluationLocation, b: EvaluationLocation, step: int | None
) -> tuple[StoredEvaluation, StoredEvaluation]:
    """Return the evaluations to compare: of two runs those at their last common step, else the only or
    last of each."""
    if step is not None and not (a.is_run or b.is_run):
        raise ConfigError(f"--step {step} needs a run, and neither A nor B is a run")
    if step is None and a.is_run and b.is_run and (common := a.by_step.keys() & b.by_step.keys()):
        step = max(s for s in common if s is not None)
    steps = [step, step]
    if step is None:
        steps = [max((s for s in one.by_step if s is not None), default=None) for one in (a, b)]
    return a.read(steps[0]), b.read(steps[1])


def _sets(file: Path) -> dict[str, Attempted]:
    sets = {name: numbers.questions for name, numbers in read_results(file).sets.items()}
    if empty := [name for name, questions in sets.items() if not questions] or ([] if sets else ["sets"]):
        raise ConfigError(f"{str(file)!r} has no question in {empty[0]!r}")
    return {
        name: {
            question: tuple(attempt_score(a, f"{str(file)!r}, question {question!r}") for a in found.attempts)
            for question, found in questions.items()
        }
        for name, questions in sets.items()
    }


Attempted = dict[str, tuple[float | None, ...]]
"""The score of each attempt by question, 0 to 1; None if it Failed."""

HELDOUT: Final = "heldout"
"""The name of a set without one."""
SUFFIXES: Final = (".csv", ".jsonl")
WORDS: Final = {"1": 1.0, "0": 0.0, "true": 1.0, "false": 0.0, "failed": None, "null": None, "none": None}


def load_table(path: Path) -> dict[str, Attempted]:
    """Load attempts by set and question. ConfigError with file and line for invalid input."""
    sets: dict[str, Attempted] = {}
    try:
        for line, row in _rows(path):
            place = f"{str(path)!r}, line {line}"
            name, question, attempts = _row(row, place)
            questions = sets.setdefault(name, {})
            if question in questions:
                raise ConfigError(f"{place}: question {question!r} of {name!r} has two rows; keep one")
            questions[question] = attempts
    except UnicodeDecodeError as error:
        raise ConfigError(f"{str(path)!r} is not UTF-8 text ({error.reason} at byte {error.start})") from None
    except csv.Error as error:
        raise ConfigError(f"{str(path)!r} is not CSV: {error}") from None
    if not sets:
        raise ConfigError(f"{str(path)!r} has no row; it needs question and score, or question and attempts")
    return sets


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield line numbers and rows."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix == ".csv":
            reader = csv.DictReader(file, strict=True)
            for row in reader:
                yield reader.line_num, row
            return
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise ConfigError(f"{str(path)!r}, line {number} is not JSON: {error}") from None
                if not isinstance(row, dict):
                    raise ConfigError(f"{str(path)!r}, line {number} is not a JSON object: {line.strip()[:60]}")
                yield number, row


def _row(row: Mapping[str, Any], place: str) -> tuple[str, str, tuple[float | None, ...]]:
    question, name = row.get("question"), row.get("set") or HELDOUT
    if question in (None, ""):
        columns = ", ".join(map(str, row))
        raise ConfigError(f"{place} has no question; the columns are {columns}, and question is needed")
    if row.get("attempts") not in (None, "", []):
        attempts = row["attempts"]
        if isinstance(attempts, str):
            attempts = attempts.replace(",", " ").replace(";", " ").split()
        if not isinstance(attempts, list):
            raise ConfigError(f"{place}: attempts {attempts!r} is not a list; write [true, false] or `1 0`")
        return str(name), str(question), tuple(attempt_score(a, place) for a in attempts)
    if row.get("score") in (None, ""):
        raise ConfigError(f"{place} has neither score nor attempts of question {question!r}")
    return str(name), str(question), (attempt_score(row["score"], place),)


def attempt_score(value: object, place: str) -> float | None:
    """Return the score of one attempt, or of several as their mean; None for a Failed one."""
    if isinstance(value, str) and value.lower() in WORDS:
        return WORDS[value.lower()]
    if value is None:
        return None
    try:
        score = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not 0 <= score <= 1:
        raise ConfigError(f"{place}: {value!r} is not a score; write true, false, null or a share, 0 to 1")
    return score
