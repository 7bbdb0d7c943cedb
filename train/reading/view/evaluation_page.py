"""Evaluations for the page: scores, the attempts at each question, and a comparison of two by question."""

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import numpy as np

from rocstar.engine.charts.drawing import Figure, format_value
from rocstar.engine.charts.row_chart import ChartRow, Mark, RowChart, row_chart
from rocstar.engine.record.step_file import task_number
from rocstar.sandbox.extras import shell_command
from rocstar.train.evaluation.compare import compare_paths
from rocstar.train.evaluation.evaluation_folder import EvaluationFolder
from rocstar.train.evaluation.tables import Results, SetNumbers, read_results, tables
from rocstar.train.reading.view.chart import Chart, stacked
from rocstar.train.reading.view.conversation import MAX_ANSWER
from rocstar.train.reading.view.listing import Listing
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.manifest import ManifestError, command_of_start, read_manifest
from rocstar.train.record.run_directory import CONFIG

SHORT: Final = 12
"""Characters of a digest in the page."""
MAX_MANIFEST: Final = 60_000
"""The maximum characters of the manifest in the page."""


def manifest_facts(directory: Path, results: Results) -> dict[str, Any]:
    """Return what manifest.json and config.toml say about an evaluation.

    `problem` is the reason why the manifest is unreadable, or "".
    """
    problem = ""
    try:
        starts = read_manifest(directory)
    except ManifestError as error:
        starts, problem = [], str(error)
    recorded = [start for start in starts if isinstance(start.get("evaluation"), Mapping)]
    start: Mapping[str, Any] = (recorded or starts or [{}])[-1]
    manifest = json.dumps(start, indent=1, ensure_ascii=False) if start else ""
    facts = _facts(start, results)
    if facts["made"] and len(starts) > 1:
        facts["made"] += f", {len(starts)} starts"
    return {
        "model": _model(directory, start),
        "facts": {name: value for name, value in facts.items() if value},
        "problem": problem,
        "settings": {name: _settings(start, name) for name in results.sets},
        "command": command_of_start(start),
        "manifest": manifest[:MAX_MANIFEST],
    }


def _at(start: Mapping[str, Any], *path: str) -> Any:
    """Return a value of the start's entry, or None."""
    found: Any = start
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _model(directory: Path, start: Mapping[str, Any]) -> str:
    """Return the name of the model in its recipe; for an evaluation of a run, run and step."""
    run_step = _at(start, "evaluation", "model", "step")
    if run_step is not None and not (directory / CONFIG).is_file():
        return f"{directory.resolve().parent.parent.name}, step {run_step}"
    try:
        recipe = tomllib.loads((directory / CONFIG).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return directory.resolve().name
    model = recipe.get("model")
    return str(model.get("path", "")) if isinstance(model, dict) else directory.resolve().name


def _facts(start: Mapping[str, Any], results: Results) -> dict[str, str]:
    """Return the facts by name, "" if unknown."""
    digests = _at(start, "evaluation", "model") or {}
    names = ("weights", "tokenizer", "template")
    model = [f"{name} {_short(digests[name])}" for name in names if digests.get(name)]
    version = digests.get("version")
    model += [f"policy version {version}"] if version is not None else []
    settings = _at(start, "evaluation", "settings")
    engine, engine_words = _at(start, "evaluation", "settings", "engine"), []
    if isinstance(engine, Mapping):
        engine_words = [str(engine.get("kind")), str(settings.get("dtype") or "")]
        engine_words += ["deterministic"] if engine.get("deterministic") else []
    noise = _at(start, "evaluation", "settings", "noise_seed")
    seed = "" if results.seed is None else f"{results.seed}" + (f" (noise {noise})" if noise else "")
    sandbox, layers = _at(start, "evaluation", "sandbox"), ""
    if isinstance(sandbox, Mapping):
        layers = f"{sandbox.get('tier')}: {', '.join(map(str, sandbox.get('layers') or []))}"
    code = [f"rocstar {start['rocstar']}"] if start.get("rocstar") else []
    if commit := start.get("commit"):
        code.append(f"commit {_short(commit)}{' with changes' if start.get('dirty') else ''}")
    code += [f"{name} {start[name]}" for name in ("python", "torch", "transformers") if start.get(name)]
    dates = [str(start[name]) for name in ("started", "ended") if start.get(name)]
    return {
        "model": ", ".join(model),
        "engine": ", ".join(filter(None, engine_words)),
        "seed": seed,
        "sandbox": layers,
        "code": ", ".join(code),
        "made": " to ".join(dates) if start.get("started") else "",
    }


def _settings(start: Mapping[str, Any], name: str) -> str:
    """Return a sentence about the settings and the data of a set, or "" if unknown."""
    asked = _at(start, "evaluation", "settings", "sampling", name)
    words = []
    if isinstance(asked, Mapping):
        words.append(
            f"Prompted as {asked.get('asking')}: {asked.get('samples')} samples at temperature "
            f"{asked.get('temperature')}, at most {_count(asked.get('max_response_tokens'))} tokens and "
            f"{_count(asked.get('max_turns'))} turns."
        )
    data = _at(start, "evaluation", "data", name)
    if isinstance(data, Mapping):
        source = f"{data.get('repository')} at {_short(data['revision'])}" if data.get("revision") else ""
        rows = {"True": "the published rows", "False": "other rows than the published ones"}
        known = rows.get(str(data.get("is_known")), "")
        parts = [source, known, f"digest {_short(data.get('digest'))}"]
        licence = f" Licence: {data['licence']}." if data.get("licence") else ""
        words.append(f"Data: {', '.join(filter(None, parts))}.{licence}")
    if verifier := _at(start, "evaluation", "verifier", name):
        words.append(f"Verifier {_short(verifier)}.")
    return " ".join(words)


def _short(digest: Any) -> str:
    return str(digest)[:SHORT]


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


QuestionsOf = Callable[[str], Sequence[Mapping[str, Any]]]
"""Returns the questions of a set."""
ESTIMATES: Final = ("failed attempts count as wrong", "failed attempts left out", "questions not found in training")
COLORS: Final = {"correct": 0, "wrong": 1, "truncated": 4}
MOST_BINS: Final = 32
"""Bars of a distribution."""
HIDDEN: Final = (
    "The licence of this set asks that its questions are not shown. This page has neither them nor the "
    "attempts, which repeat them; `rocstar report FOLDER --reveal` includes both."
)


def evaluation_page(folder: Path) -> dict[str, Any]:
    """Return scores of all sets, drawn and as tables, and how they were made. ConfigError if results.json is
    damaged."""
    results = read_results(EvaluationFolder(folder).results)
    chart = _forest(results.sets)
    caption = "A mark is avg@k; the whiskers are its 95% interval, with questions, not attempts, as the sample."
    if not any(row.marks for row in chart.rows):
        caption = "No attempt was scored."
    return {
        "sets": list(results.sets),
        **manifest_facts(folder, results),
        "forest": Figure(partial(row_chart, chart), caption, is_wide=True).as_json(),
        "tables": [
            {"title": one.title, "head": one.head, "rows": one.rows, "note": one.note} for one in tables(results.sets)
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
    scores = [(0, one.failed_as_wrong.avg, one.failed_as_wrong.interval)]
    if one.failed:
        scores.append((1, one.failed_left_out.avg, one.failed_left_out.interval))
    if one.contamination is not None and one.contamination.num_contaminated:
        scores.append((2, one.contamination.avg_clean, one.contamination.interval_clean))
    for kind, value, interval in scores:
        if value is not None:
            low, high = interval or (None, None)
            text = f"{value:.3f}" + (f" [{low:.2f}, {high:.2f}]" if interval else "")
            yield Mark(value, low, high, kind=kind, text=text, short=f"{value:.3f}")


def list_questions(folder: Path, name: str, listing: Listing | None, *, reveal: bool) -> list[dict[str, Any]]:
    """Return every question of a set with its attempts, the hardest first; those without a verdict are last.

    An attempt is `k` correct, `w` wrong, `t` truncated and so wrong, `f` failed. `row` is the place of a
    question's first attempt in the file of the set, `listing`; None if there is no such file. `answers`
    has the given answer of each attempt. Without `reveal`, no text of a set whose licence asks so is
    returned. ConfigError for an unknown set.
    """
    numbers = _numbers_of(folder, name)
    questions: list[dict[str, Any]] = []
    at = 0
    for question, found in numbers.questions.items():
        attempts, cut = found.attempts, found.truncated or [False] * len(found.attempts)
        cells = "".join(
            "f" if a is None else "k" if a else "t" if t else "w" for a, t in zip(attempts, cut, strict=False)
        )
        answers = [text and str(text)[:MAX_ANSWER] for text in found.answers]
        row = {
            "id": question,
            "row": at,
            "cells": cells,
            "correct": cells.count("k"),
            "scored": len(cells) - cells.count("f"),
            "family": found.source,
        }
        if reveal or not numbers.hidden:
            row["answers"] = answers
            # Without a match the file is not the one that results.json is of.
            if listing is not None and listing.rows["task"][at : at + 1].tolist() == [task_number(question)]:
                texts = listing.row_with_texts(at, reveal=True)
                row |= {key: texts[key] for key in ("question", "answer") if key in texts}
        questions.append(row)
        at += len(attempts)
    questions.sort(key=lambda row: (row["correct"] / row["scored"] if row["scored"] else 2.0, row["row"]))
    return questions


def _numbers_of(folder: Path, name: str) -> SetNumbers:
    sets = read_results(EvaluationFolder(folder).results).sets
    if name not in sets:
        raise ConfigError(f"{str(folder)!r} has no set {name!r}; its sets are {', '.join(sets)}")
    return sets[name]


def grid(folder: Path, name: str, listing: Listing | None, *, reveal: bool) -> dict[str, Any]:
    """Return the questions of a set as `list_questions`, and how long its attempts are."""
    questions = list_questions(folder, name, listing, reveal=reveal)
    is_shown = reveal or not _numbers_of(folder, name).hidden
    notes = [] if is_shown else [HIDDEN]
    if listing is None:
        notes.append(f"{EvaluationFolder(folder).attempts(name).name} does not exist")
    else:
        notes += listing.problems
    return {
        "set": name,
        "questions": questions,
        "shown": is_shown,
        "figures": [] if listing is None else [one.as_json() for one in _distributions(listing)],
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
        parts = {kind: np.bincount(values[mask] // width, minlength=num).tolist() for kind, mask in kinds.items()}
        heads = [
            f"{column}: {i * width:,}" + (f" to {(i + 1) * width - 1:,}" if width > 1 else "") for i in range(num)
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


def compare_page(a: Path, b: Path, questions_a: QuestionsOf, questions_b: QuestionsOf) -> dict[str, Any]:
    """Return B minus A by set, as `rocstar compare`, with each question of both as `list_questions`.

    ConfigError if the two have different questions.
    """
    found = compare_paths(a, b)
    only_b = next(iter(found.b.sets))
    sets: dict[str, Any] = {}
    for each in found.sets:
        # One set alone is compared under either name.
        name_b = each.name if each.name in found.b.sets else only_b
        of_b = {one["id"]: one for one in questions_b(name_b)}
        sets[each.name] = {
            "set_b": name_b,
            "questions": [{"a": one, "b": of_b[one["id"]]} for one in questions_a(each.name)],
        }
    return {**found.as_json(), "questions": sets, "command": shell_command("compare", a, b)}
