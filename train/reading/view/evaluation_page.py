"""Evaluations for the page: scores, the attempts at each question, and a comparison of two by question."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import numpy as np

from rocstar.engine.charts.drawing import Figure, format_value
from rocstar.engine.charts.row_chart import ChartRow, Mark, RowChart, row_chart
from rocstar.engine.record.json_record import RecordError
from rocstar.sandbox.extras import shell_command
from rocstar.train.evaluation.compare import compare_paths
from rocstar.train.evaluation.evaluation_folder import EvaluationFolder
from rocstar.train.evaluation.tables import SetNumbers, read_results, tables
from rocstar.train.reading.view.chart import Chart, stacked
from rocstar.train.reading.view.evaluation_facts import manifest_facts
from rocstar.train.reading.view.listing import Listing
from rocstar.train.recipe.errors import ConfigError

ESTIMATES: Final = (
    "failed attempts count as wrong",
    "failed attempts left out",
    "questions not found in training",
)
COLORS: Final = {"correct": 0, "wrong": 1, "truncated": 4}
MOST_BINS: Final = 32
"""Bars of a distribution."""
HARDEST: Final = 5
"""The number of questions shown in full."""
MAX_QUESTION: Final = 600
"""Characters of a question or an answer that are shown in full."""
HIDDEN: Final = (
    "The licence of this set asks that its questions are not shown. This page has neither them nor the "
    "attempts, which repeat them; `rocstar report FOLDER --reveal` includes both."
)


def evaluation_page(folder: Path) -> dict[str, Any]:
    """Return scores of all sets, drawn and as tables, and how they were made. ConfigError if results.json is
    damaged."""
    results = read_results(EvaluationFolder(folder).results)
    chart = _forest(results.sets)
    caption = (
        "A mark is avg@k; the whiskers are its 95% interval, with questions, not attempts, as the sample."
    )
    if not any(row.marks for row in chart.rows):
        caption = "No attempt was scored."
    return {
        "sets": list(results.sets),
        **manifest_facts(folder, results),
        "forest": Figure(partial(row_chart, chart), caption, is_wide=True).as_json(),
        "tables": [
            {"title": one.title, "head": one.head, "rows": one.rows, "note": one.note}
            for one in tables(results.sets)
        ],
    }


def _forest(sets: Mapping[str, SetNumbers]) -> RowChart:
    rows = [
        ChartRow(name, list(_estimates(one)), detail=f"avg@{one.k}, {one.num_questions:,} questions")
        for name, one in sets.items()
    ]
    kinds = sorted({mark.kind for row in rows for mark in row.marks})
    legend = {kind: ESTIMATES[kind] for kind in kinds} if len(kinds) > 1 else {}
    ticks = {tick / 4: f"{25 * tick}%" for tick in range(5)}
    title = "Share of correct attempts"
    return RowChart(title=title, subtitle="95% intervals", rows=rows, ticks=ticks, legend=legend)


def _estimates(one: SetNumbers) -> Iterator[Mark]:
    """Yield the distinct estimates of a set."""
    scores = [(0, one.as_wrong.avg, one.as_wrong.interval)]
    if one.failed:
        scores.append((1, one.left_out.avg, one.left_out.interval))
    if one.contamination is not None and one.contamination.num_contaminated:
        scores.append((2, one.contamination.avg_clean, one.contamination.interval_clean))
    for kind, value, interval in scores:
        if value is not None:
            low, high = interval or (None, None)
            text = f"{value:.3f}" + (f" [{low:.2f}, {high:.2f}]" if interval else "")
            yield Mark(value, low, high, kind=kind, text=text, short=f"{value:.3f}")


def grid(folder: Path, name: str, listing: Listing | None, *, reveal: bool) -> dict[str, Any]:
    """Return every question of a set with its attempts, the hardest first; those without a verdict are last.

    An attempt is `k` correct, `w` wrong, `t` truncated and so wrong, `f` failed. `row` is the place of a
        question's first attempt in the file of the set, `listing`; None if there is no such file. Without
        `reveal`, no text of a set whose licence asks so is returned. ConfigError for an unknown set.
    """
    rows: list[dict[str, Any]] = []
    at = 0
    for question, found in _questions(folder, name).items():
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
    rows.sort(key=lambda row: (row["correct"] / row["scored"] if row["scored"] else 2.0, row["row"]))
    is_shown = reveal or not read_results(EvaluationFolder(folder).results).sets[name].hidden
    notes = [] if is_shown else [HIDDEN]
    if listing is None:
        notes.append(f"{EvaluationFolder(folder).attempts(name).name} does not exist")
    else:
        notes += listing.problems
    return {
        "set": name,
        "questions": rows,
        "shown": is_shown,
        "figures": [] if listing is None else [one.as_json() for one in _distributions(listing)],
        "hardest": list(_hardest(rows, listing)) if listing is not None and is_shown else [],
        "notes": notes,
    }


def _distributions(listing: Listing) -> Iterator[Chart]:
    """Yield how many tokens and turns the scored attempts have."""
    rows = listing.rows[~np.isnan(listing.rows["reward"])]
    is_cut = ~rows["is_correct"] & rows["is_truncated"]
    kinds = {"correct": rows["is_correct"], "wrong": ~rows["is_correct"] & ~is_cut, "truncated": is_cut}
    for column, title, caption in (
        ("tokens", "Length", "Attempts by their tokens: prompt, policy and tool output."),
        ("turns", "Turns", "Attempts by the number of completions of the policy."),
    ):
        values, width = rows[column].astype(int), 1
        while values.max(initial=0) // width >= MOST_BINS:
            width *= 2
        num = int(values.max(initial=0)) // width + 1
        parts = {
            kind: np.bincount(values[mask] // width, minlength=num).tolist() for kind, mask in kinds.items()
        }
        heads = [
            f"{column}: {i * width:,}" + (f" to {(i + 1) * width - 1:,}" if width > 1 else "")
            for i in range(num)
        ]
        means = [
            f"{format_value(float(values[mask].mean()), '')} where {kind}"
            for kind, mask in kinds.items()
            if mask.any()
        ]
        xs = [i * width + (width - 1) / 2 for i in range(num)]
        shown = {kind: counts for kind, counts in parts.items() if any(counts)}
        text = f"{caption} Mean: {', '.join(means)}." if means else caption
        yield stacked(title, "attempts", xs, shown, colors=COLORS, over=column, heads=heads, caption=text)


def _hardest(rows: Sequence[Mapping[str, Any]], listing: Listing) -> Iterator[dict[str, Any]]:
    for row in rows[:HARDEST]:
        try:
            task = listing.opened(0).record(row["row"]).get("task") or {}
        except (RecordError, IndexError):  # the file is not the one that results.json is of
            continue
        if task.get("id") == row["id"]:
            tokens = listing.rows["tokens"][row["row"] : row["row"] + len(row["cells"])]
            yield {
                "id": row["id"],
                "question": str(task.get("question", ""))[:MAX_QUESTION],
                "answer": str(task.get("answer", ""))[:MAX_QUESTION],
                "detail": f"{row['correct']} of {row['scored']} correct, "
                f"{format_value(float(tokens.mean()), '')} tokens on average",
            }


def select_attempts(questions: Sequence[Mapping[str, Any]], num: int) -> list[int]:
    """Return the rows of at most `num` attempts to read, of the questions of `grid`: alternating between the
    hardest questions that were sometimes solved and the hardest never solved, the first attempt of each
    kind."""
    solved = [one for one in questions if 0 < one["correct"] < len(one["cells"])]
    never = [one for one in questions if not one["correct"]]
    always = [one for one in questions if one["correct"] and one["correct"] == len(one["cells"])]
    pairs = (one for pair in zip_longest(solved, never) for one in pair if one is not None)
    found: list[int] = []
    for one in (*pairs, *always):
        found += [one["row"] + one["cells"].index(code) for code in "kwtf" if code in one["cells"]]
        if len(found) >= num:
            break
    return found[:num]


def compare_page(a: Path, b: Path) -> dict[str, Any]:
    """B minus A by set, as `rocstar compare`, with each question's share of correct attempts in both.

    ConfigError where the two were not asked the same.
    """
    found = compare_paths(a, b)
    only_b = next(iter(found.b.sets.values()))
    shares = {
        each.name: [
            {"id": question, "a": _share(mine), "b": _share(theirs)}
            for question, mine in found.a.sets[each.name].items()
            # One set alone is compared under either name.
            if (theirs := found.b.sets.get(each.name, only_b).get(question)) is not None
        ]
        for each in found.sets
    }
    return {**found.as_json(), "questions": shares, "command": shell_command("compare", a, b)}


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
