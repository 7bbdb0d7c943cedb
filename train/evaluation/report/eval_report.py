"""report.html of an evaluation folder: one self-contained page, made from the folder's files.

    results.json ────> forest plot, tables
    manifest.json, config.toml ──> model and settings
    attempts/NAME.jsonl ──read once──> lengths, grid, hardest questions ──a few are read again──> attempts

The page can be made again at any time. Its memory and size do not grow with the number of attempts: it has a
limited number of the hardest questions of each set, and of attempts, and states the limits.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rocstar.train.evaluation.evaluation_folder import EvaluationFolder
from rocstar.train.evaluation.report.figures import ForestRow, forest_plot
from rocstar.train.evaluation.report.set_reader import read_set
from rocstar.train.evaluation.report.set_section import (
    MAX_CELLS,
    PAGE_ATTEMPTS,
    PARTS,
    SetPage,
    attempt_limit,
    row_limit,
    select_cards,
    set_section,
)
from rocstar.train.evaluation.report.tables import Results, forest_rows, read_results, tables
from rocstar.train.record.manifest import ManifestError, read_manifest
from rocstar.train.record.report.page import figure, page, part_of
from rocstar.train.record.run_directory import CONFIG, REPORT, replace_text

CARDS = 2_500_000
"""The maximum characters of all attempts that are shown in full."""


def write_eval_report(folder: Path, *, reveal: bool) -> Path:
    """Write `folder/report.html` atomically and return its path.

    reveal: include questions, answers and attempts of sets whose licence asks that they are not shown.

    Raises:
        ConfigError: the folder holds no finished evaluation, or its results.json is damaged.
    """
    results, facts = read_results(EvaluationFolder(folder).results), ManifestFacts(folder)
    sets = _read(EvaluationFolder(folder), results, reveal=reveal)
    names = [(one.place, one.name) for one in sets]
    sections = [
        part_of(PARTS, "headline", facts.model, facts.table(results), names, facts.problem),
        _scores(results),
        *(set_section(one, facts.settings(one.name)) for one in sets),
        _attempts(sets),
        part_of(PARTS, "manifest", facts.whole(), facts.command(), _rule(sets)),
    ]
    style = PARTS.with_suffix(".css").read_text(encoding="utf-8")
    text = page(f"rocstar: {facts.model}", sections, style=style)
    # A policy may write half a surrogate pair in its arguments; the page shows its escape.
    replace_text(folder / REPORT, text.encode(errors="backslashreplace").decode())
    return folder / REPORT


def _read(folder: EvaluationFolder, results: Results, *, reveal: bool) -> list[SetPage]:
    """Read all sets; no text of a hidden set is kept."""
    found: list[SetPage] = []
    room, num_sets = CARDS, len(results.sets)
    for place, (name, numbers) in enumerate(results.sets.items()):
        file, is_shown = folder.attempts(name), reveal or not numbers.hidden
        max_rows = row_limit(num_sets, numbers.k)
        reading = read_set(file, max_rows=max_rows, max_cells=MAX_CELLS, keep_texts=is_shown)
        num = attempt_limit(num_sets) if is_shown else 0
        cards = select_cards(place, file, reading, num=num, room=room)
        room -= sum(map(len, cards.values()))
        found.append(
            SetPage(
                place=place,
                name=name,
                numbers=numbers,
                file=file,
                reading=reading,
                is_shown=is_shown,
                cards=cards,
            )
        )
    return found


def _scores(results: Results) -> Markup:
    rows = forest_rows(results.sets)
    text = "A mark is avg@k; the whiskers are its 95% interval, with questions, not attempts, as the sample."
    caption = text if any(row.estimates for row in rows) else "No attempt was scored."
    plot = figure(partial(_forest, rows), caption, is_wide=True)
    return part_of(PARTS, "scores", plot, tables(results.sets))


def _forest(rows: Sequence[ForestRow], *, width: int, height: int) -> str:
    """Draw the forest plot; the number of rows sets its height."""
    return forest_plot("Share of correct attempts", rows, width=width)


def _attempts(sets: Sequence[SetPage]) -> Markup:
    caption = (
        "Alternating between the hardest questions that were sometimes solved and the hardest never solved: "
        "the first attempt of each kind."
    )
    groups = [(one.name, list(one.cards.values())) for one in sets if one.cards]
    return part_of(PARTS, "attempts", groups, caption)


def _rule(sets: Sequence[SetPage]) -> str:
    """Return the sentences about the limits of the page."""
    num_cards = sum(len(one.cards) for one in sets)
    num_rows = sum(len(one.reading.rows) for one in sets)
    return (
        f"This page has {num_cards} attempts (at most {PAGE_ATTEMPTS}; long texts without their middle) and "
        f"{num_rows:,} questions with at most {MAX_CELLS} squares each, so that its size stays at a few "
        "megabytes. Numbers and distributions are of all attempts. An attempt that is "
        "not on the page is the line that its square names, in attempts/ of this folder. Made from "
        "results.json, manifest.json, config.toml and attempts/."
    )


SHORT = 12
"""Characters of a digest in the page."""
MAX_MANIFEST = 60_000
"""The maximum characters of the manifest in the page."""


class ManifestFacts:
    """The entries of manifest.json and config.toml of an evaluation, if these files exist."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.problem = ""
        """The reason why the manifest is unreadable, or ""."""
        try:
            starts = read_manifest(directory)
        except ManifestError as error:
            starts, self.problem = [], str(error)
        recorded = [start for start in starts if isinstance(start.get("evaluation"), Mapping)]
        self.num_starts = len(starts)
        self._start: Mapping[str, Any] = (recorded or starts or [{}])[-1]

    def _at(self, *path: str) -> Any:
        """Return a value of the start's entry, or None."""
        found: Any = self._start
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    @property
    def model(self) -> str:
        """The name of the model in its recipe; for an evaluation of a run, run and step."""
        run_step = self._at("evaluation", "model", "step")
        if run_step is not None and not (self._directory / CONFIG).is_file():
            return f"{self._directory.resolve().parent.parent.name}, step {run_step}"
        try:
            recipe = tomllib.loads((self._directory / CONFIG).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            return self._directory.resolve().name
        model = recipe.get("model")
        return str(model.get("path", "")) if isinstance(model, dict) else self._directory.resolve().name

    def table(self, results: Results) -> dict[str, str]:
        """Return the known facts by name."""
        digests = self._at("evaluation", "model") or {}
        names = ("weights", "tokenizer", "template")
        known = [f"{name} {_short(digests[name])}" for name in names if digests.get(name)]
        version = digests.get("version")
        known += [f"policy version {version}"] if version is not None else []
        facts = {
            "model": ", ".join(known),
            "engine": self._engine(),
            "seed": self._seed(results),
            "sandbox": self._sandbox(),
            "code": self._code(),
            "made": self._made(),
        }
        return {name: value for name, value in facts.items() if value}

    def _engine(self) -> str:
        settings = self._at("evaluation", "settings", "engine")
        if not isinstance(settings, Mapping):
            return ""
        words = [str(settings.get("kind")), str(self._at("evaluation", "settings", "dtype") or "")]
        words += ["deterministic"] if settings.get("deterministic") else []
        return ", ".join(filter(None, words))

    def _seed(self, results: Results) -> str:
        noise = self._at("evaluation", "settings", "noise_seed")
        return "" if results.seed is None else f"{results.seed}" + (f" (noise {noise})" if noise else "")

    def _sandbox(self) -> str:
        sandbox = self._at("evaluation", "sandbox")
        if not isinstance(sandbox, Mapping):
            return ""
        return f"{sandbox.get('tier')}: {', '.join(map(str, sandbox.get('layers') or []))}"

    def _code(self) -> str:
        words = [f"rocstar {self._at('rocstar')}"] if self._at("rocstar") else []
        if commit := self._at("commit"):
            words.append(f"commit {_short(commit)}{' with changes' if self._at('dirty') else ''}")
        others = ("python", "torch", "transformers")
        words += [f"{name} {self._at(name)}" for name in others if self._at(name)]
        return ", ".join(words)

    def _made(self) -> str:
        started, ended = self._at("started"), self._at("ended")
        if not started:
            return ""
        starts = f", {self.num_starts} starts" if self.num_starts > 1 else ""
        return f"{started} to {ended}{starts}" if ended else f"{started}{starts}"

    def settings(self, name: str) -> str:
        """Return a sentence about the settings and the data of a set, or "" if unknown."""
        asked = self._at("evaluation", "settings", "sampling", name)
        words = []
        if isinstance(asked, Mapping):
            words.append(
                f"Prompted as {asked.get('asking')}: {asked.get('samples')} samples at temperature "
                f"{asked.get('temperature')}, at most {_count(asked.get('max_response_tokens'))} tokens and "
                f"{_count(asked.get('max_turns'))} turns."
            )
        data = self._at("evaluation", "data", name)
        if isinstance(data, Mapping):
            source = f"{data.get('repository')} at {_short(data['revision'])}" if data.get("revision") else ""
            rows = {"True": "the published rows", "False": "other rows than the published ones"}
            known = rows.get(str(data.get("is_known")), "")
            parts = [source, known, f"digest {_short(data.get('digest'))}"]
            licence = f" Licence: {data['licence']}." if data.get("licence") else ""
            words.append(f"Data: {', '.join(filter(None, parts))}.{licence}")
        if verifier := self._at("evaluation", "verifier", name):
            words.append(f"Verifier {_short(verifier)}.")
        return " ".join(words)

    def whole(self) -> str:
        """Return the start's entry as JSON."""
        text = json.dumps(self._start, indent=1, ensure_ascii=False) if self._start else ""
        return text[:MAX_MANIFEST]

    def command(self) -> str:
        """Return the command line."""
        words: Sequence[Any] = self._at("command") or []
        return " ".join(map(str, words))


def _short(digest: Any) -> str:
    return str(digest)[:SHORT]


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
