"""Evaluations on disk, whatever wrote them, as scores of attempts by set and question.

    RUN/                         its evaluations/, one for each step that was evaluated
    RUN/checkpoints/step_N/      the evaluation of the run at that step
    RUN/evaluations/step_N       this one of them
    FOLDER/results.json          an evaluation with all its sets
    FOLDER/summary.json          an evaluation with one set, as `step_N.json` of a run
    FILE.csv, FILE.jsonl         what others publish (published.py)

Nothing of the records is read.
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

from rocstar.train.recipe.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvaluation:
    """What an evaluation left, as far as two of them are compared."""

    path: Path
    step: int | None
    """Of the run, where it is one's."""
    sets: Mapping[str, Attempted]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationLocation:
    """Where evaluations lie: one, or one for each step of a run."""

    path: Path
    by_step: Mapping[int | None, Path]

    @property
    def is_run(self) -> bool:
        return None not in self.by_step

    def read(self, step: int | None) -> StoredEvaluation:
        """The evaluation at a step of the run. ConfigError if there is none, or if it cannot be read."""
        if not self.is_run:
            step = None
        elif step not in self.by_step:
            known = ", ".join(str(s) for s in sorted(s for s in self.by_step if s is not None)[-8:])
            raise ConfigError(f"{str(self.path)!r} was not evaluated at step {step}; it was at {known}")
        file = self.by_step[step]
        if file.suffix in SUFFIXES:
            return StoredEvaluation(path=file, step=step, sets=load_table(file))
        return StoredEvaluation(path=file, step=step, sets=_sets(_document(file), file))


def find_evaluations(path: Path) -> EvaluationLocation:
    """What lies at a path. ConfigError where no evaluation does."""
    if not path.exists() and (former := path.with_name(f"{path.name}.json")).is_file():
        path = former
    if path.is_file():
        if path.suffix not in (*SUFFIXES, ".json"):
            raise ConfigError(f"{str(path)!r} is no evaluation: a file ends in .json, .csv or .jsonl")
        return EvaluationLocation(path=path, by_step={None: path})
    if not path.exists():
        raise ConfigError(f"{str(path)!r} does not exist; give a run, a checkpoint, an evaluation or a table")
    for name in ("results.json", "summary.json"):
        if (path / name).is_file():
            return EvaluationLocation(path=path, by_step={None: path / name})
    whole = path.absolute()
    if whole.parent.name == "checkpoints" and (found := re.fullmatch(r"step_(\d+)", whole.name)):
        step, run = int(found[1]), find_evaluations(whole.parent.parent)
        if step not in run.by_step:
            raise ConfigError(f"the run of {str(path)!r} was not evaluated at step {step}")
        return EvaluationLocation(path=path, by_step={step: run.by_step[step]})
    if by_step := _steps(path / "evaluations"):
        return EvaluationLocation(path=path, by_step=by_step)
    raise ConfigError(
        f"{str(path)!r} holds no evaluation: neither results.json nor summary.json nor evaluations/step_N; "
        "give a run that was evaluated, or what `rocstar eval --out` wrote"
    )


def match_evaluations(
    a: EvaluationLocation, b: EvaluationLocation, step: int | None
) -> tuple[StoredEvaluation, StoredEvaluation]:
    """Of two runs the last step at which both were evaluated; else of each its only or last evaluation."""
    if step is not None and not (a.is_run or b.is_run):
        raise ConfigError(f"--step {step} is of a run, and neither A nor B is one")
    if step is None and a.is_run and b.is_run and (common := a.by_step.keys() & b.by_step.keys()):
        step = max(s for s in common if s is not None)
    return tuple(place.read(_last(place) if step is None else step) for place in (a, b))  # type: ignore[return-value]


def _last(place: EvaluationLocation) -> int | None:
    return max((s for s in place.by_step if s is not None), default=None)


def _steps(folder: Path) -> dict[int | None, Path]:
    found: dict[int | None, Path] = {}
    for path in folder.glob("step_*"):
        if name := re.fullmatch(r"step_(\d+)(\.json)?", path.name):
            file = path if name[2] else path / "results.json"
            if file.is_file():
                found[int(name[1])] = file
    return found


def _document(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{str(file)!r} is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{str(file)!r} is no JSON object")
    return document


def _sets(document: Mapping[str, Any], file: Path) -> dict[str, Attempted]:
    place = repr(str(file))
    if isinstance(sets := document.get("sets"), dict):
        found = {name: _questions(told, f"{place}, set {name!r}") for name, told in sets.items()}
    elif isinstance(correct := document.get("correct"), dict):
        found = {HELDOUT: _one_set(correct, document.get("k"), place)}
    else:
        raise ConfigError(f"{place} is no evaluation: it has neither `sets` nor `correct`")
    if empty := [name for name, questions in found.items() if not questions] or ([] if found else ["sets"]):
        raise ConfigError(f"{place} has no question in {empty[0]!r}")
    return found


def _questions(told: object, place: str) -> Attempted:
    questions = told.get("questions") if isinstance(told, dict) else None
    if not isinstance(questions, dict):
        raise ConfigError(f"{place} has no `questions`")
    found: Attempted = {}
    for name, question in questions.items():
        attempts = question.get("attempts") if isinstance(question, dict) else None
        if not isinstance(attempts, list):
            raise ConfigError(f"{place}: question {name!r} has no list of `attempts`")
        found[name] = tuple(attempt_score(a, f"{place}, question {name!r}") for a in attempts)
    return found


def _one_set(correct: Mapping[str, Any], k: object, place: str) -> Attempted:
    """Of a summary, which lists scored attempts only; how many were asked for says how many Failed."""
    found: Attempted = {}
    for name, verdicts in correct.items():
        if not isinstance(verdicts, list):
            raise ConfigError(f"{place}: `correct` of question {name!r} is no list")
        scores = [attempt_score(verdict, f"{place}, question {name!r}") for verdict in verdicts]
        asked = k if isinstance(k, int) else 0
        found[name] = tuple(scores + [None] * (min(asked, 1_000_000) - len(scores)))
    return found


Attempted = dict[str, tuple[float | None, ...]]
"""The score of each attempt by question, 0 to 1; None where it Failed."""

HELDOUT: Final = "heldout"
"""The name of a set that has none."""
SUFFIXES: Final = (".csv", ".jsonl")
WORDS: Final = {"1": 1.0, "0": 0.0, "true": 1.0, "false": 0.0, "failed": None, "null": None, "none": None}


def load_table(path: Path) -> dict[str, Attempted]:
    """Attempts by set and question. ConfigError with file and line for what cannot be read."""
    sets: dict[str, Attempted] = {}
    try:
        for line, row in _rows(path):
            place = f"{str(path)!r}, line {line}"
            name, question, attempts = _row(row, place)
            questions = sets.setdefault(name, {})
            if question in questions:
                raise ConfigError(f"{place}: question {question!r} of {name!r} stands in two rows; keep one")
            questions[question] = attempts
    except UnicodeDecodeError as error:
        raise ConfigError(f"{str(path)!r} is not UTF-8 text ({error.reason} at byte {error.start})") from None
    except csv.Error as error:
        raise ConfigError(f"{str(path)!r} is no CSV: {error}") from None
    if not sets:
        raise ConfigError(f"{str(path)!r} has no row; it needs question and score, or question and attempts")
    return sets


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Line numbers and rows."""
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
                    raise ConfigError(f"{str(path)!r}, line {number} is no JSON: {error}") from None
                if not isinstance(row, dict):
                    raise ConfigError(f"{str(path)!r}, line {number} is no JSON object: {line.strip()[:60]}")
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
            raise ConfigError(f"{place}: attempts {attempts!r} is no list; write [true, false] or `1 0`")
        return str(name), str(question), tuple(attempt_score(a, place) for a in attempts)
    if row.get("score") in (None, ""):
        raise ConfigError(f"{place} has neither score nor attempts of question {question!r}")
    return str(name), str(question), (attempt_score(row["score"], place),)


def attempt_score(value: object, place: str) -> float | None:
    """The score of one attempt, or of several as their mean; None for one that Failed."""
    if isinstance(value, str) and value.lower() in WORDS:
        return WORDS[value.lower()]
    if value is None:
        return None
    try:
        score = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not 0 <= score <= 1:
        raise ConfigError(f"{place}: {value!r} is no score; write true, false, null, or a share from 0 to 1")
    return score
