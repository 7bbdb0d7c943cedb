"""Evaluations for the page: forest plot, grid of questions, and a comparison of two by question."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocstar.train.evaluation.compare import compare_paths
from rocstar.train.evaluation.evaluation_folder import EvaluationFolder
from rocstar.train.evaluation.report.figures import forest_plot
from rocstar.train.evaluation.report.tables import forest_rows, read_results, tables
from rocstar.train.reading.view.drawings import chart_data
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.report.page import Drawn

CAPTION = "A mark is avg@k; the whiskers are its 95% interval, with questions, not attempts, as the sample."


def evaluation_page(folder: Path) -> dict[str, Any]:
    """Scores of all sets, drawn and as tables. ConfigError where results.json is damaged."""
    results = read_results(EvaluationFolder(folder).results)
    rows = forest_rows(results.sets)

    def draw(*, width: int, height: int) -> str:
        return forest_plot("Share of correct attempts", rows, width=width)

    return {
        "sets": list(results.sets),
        "forest": chart_data(Drawn(draw, CAPTION, is_wide=True)),
        "tables": [
            {
                "title": one.title,
                "head": list(one.head),
                "rows": [list(row) for row in one.rows],
                "note": one.note,
            }
            for one in tables(results.sets)
        ],
    }


def grid(folder: Path, name: str) -> dict[str, Any]:
    """Return every question of a set with its attempts, the hardest first.

    An attempt is `k` correct, `w` wrong, `t` truncated and so wrong, `f` failed. `row` is the place of a
        question's first attempt in the file of the set. ConfigError for an unknown set.
    """
    questions = _questions(folder, name)
    rows: list[dict[str, Any]] = []
    at = 0
    for question, found in questions.items():
        attempts = found.get("attempts") or []
        cut = found.get("truncated") or [False] * len(attempts)
        cells = "".join(
            "f" if a is None else "k" if a else "t" if t else "w" for a, t in zip(attempts, cut, strict=False)
        )
        scored = len(cells) - cells.count("f")
        rows.append(
            {"id": question, "row": at, "cells": cells, "correct": cells.count("k"), "scored": scored}
        )
        at += len(attempts)
    rows.sort(key=lambda row: (row["correct"] / row["scored"] if row["scored"] else 0.0, row["row"]))
    return {"set": name, "questions": rows}


def compare_page(a: Path, b: Path) -> dict[str, Any]:
    """B minus A by set, as `rocstar compare`, with each question's share of correct attempts in both.

    ConfigError where the two were not asked the same.
    """
    found = compare_paths(a, b)
    shares = {
        each.name: [
            {"id": question, "a": _share(mine), "b": _share(theirs)}
            for question, mine in found.a.sets[each.name].items()
            if (theirs := _set_of(found.b.sets, each.name).get(question)) is not None
        ]
        for each in found.sets
    }
    return {**found.as_json(), "questions": shares, "command": f"rocstar compare {a} {b}"}


def _set_of(sets: Mapping[str, Any], name: str) -> Any:
    """The set of a name; one set alone is compared whatever it is called."""
    return sets[name] if name in sets else next(iter(sets.values()))


def _share(attempts: Any) -> float | None:
    known = [float(score) for score in attempts if score is not None]
    return sum(known) / len(known) if known else None


def _questions(folder: Path, name: str) -> Mapping[str, Any]:
    try:
        document = json.loads(EvaluationFolder(folder).results.read_text(encoding="utf-8"))
        found = document["sets"][name]["questions"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{str(folder)!r} has no questions of a set {name!r}: {error}") from None
    return found if isinstance(found, dict) else {}
