"""A table of per-question results as others publish it, and the one error where it cannot be read.

    set,question,score            a CSV with a header, or JSON Lines with these members
    set,question,attempts         score: the share of correct attempts, 0 to 1
                                  attempts: each attempt; CSV `1 0 1 failed`, JSON [true, false, true, null]

`set` may be left out. A question stands in one row.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rocstar.train.recipe.errors import ConfigError

Attempted = dict[str, tuple[float | None, ...]]
"""The score of each attempt by question, 0 to 1; None where it Failed."""

HELDOUT: Final = "heldout"
"""The name of a set that has none."""
SUFFIXES: Final = (".csv", ".jsonl")
WORDS: Final = {"1": 1.0, "0": 0.0, "true": 1.0, "false": 0.0, "failed": None, "null": None, "none": None}


def read_table(path: Path) -> dict[str, Attempted]:
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
