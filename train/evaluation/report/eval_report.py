"""An evaluation as one page: report.html of its folder, self-contained, made from what the folder holds.

    results.json ────> forest plot, tables
    manifest.json, config.toml ──> what was evaluated, and how
    attempts/NAME.jsonl ──read once──> lengths, grid, hardest questions ──a few are opened again──> attempts

The page can be made again at any time. Its memory and its size do not grow with the number of attempts: of
each set it has so many of the hardest questions, and of all sets so many attempts, and says how many.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from markupsafe import Markup

from rocstar.train.evaluation.folder import Folder
from rocstar.train.evaluation.report.facts import Facts
from rocstar.train.evaluation.report.forest import ForestRow, forest_plot
from rocstar.train.evaluation.report.grid import MAX_CELLS, PAGE_ATTEMPTS, attempts_of_a_set, rows_of_a_set
from rocstar.train.evaluation.report.numbers import Results, read_results
from rocstar.train.evaluation.report.reading import read_set
from rocstar.train.evaluation.report.set_section import PARTS, ReadSet, cards_of, set_section
from rocstar.train.evaluation.report.tables import forest_rows, tables
from rocstar.train.record.report.page import figure, page, part_of
from rocstar.train.record.run_directory import REPORT, replace_text

CARDS = 2_500_000
"""Characters of all attempts that are shown whole."""


def write_eval_report(folder: Path, *, reveal: bool) -> Path:
    """Write `folder/report.html` and return its path; the file appears whole or not at all.

    `reveal`: also questions, answers and attempts of sets whose licence asks that they are not shown.

    Raises:
        ConfigError: the folder holds no finished evaluation, or its results.json is damaged.
    """
    results, facts = read_results(Folder(folder).results), Facts(folder)
    sets = _read(Folder(folder), results, reveal=reveal)
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
    # A policy may write half a surrogate pair in its arguments; it is shown as its escape.
    replace_text(folder / REPORT, text.encode(errors="backslashreplace").decode())
    return folder / REPORT


def _read(folder: Folder, results: Results, *, reveal: bool) -> list[ReadSet]:
    """Every set; of one that must not be shown no text is even kept."""
    found: list[ReadSet] = []
    room, num_sets = CARDS, len(results.sets)
    for place, (name, numbers) in enumerate(results.sets.items()):
        file, is_shown = folder.attempts(name), reveal or not numbers.hidden
        max_rows = rows_of_a_set(num_sets, numbers.k)
        reading = read_set(file, max_rows=max_rows, max_cells=MAX_CELLS, keep_texts=is_shown)
        num = attempts_of_a_set(num_sets) if is_shown else 0
        cards = cards_of(place, file, reading, num=num, room=room)
        room -= sum(map(len, cards.values()))
        found.append(
            ReadSet(
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
    """Its height is that of its rows."""
    return forest_plot("Share of correct attempts", rows, width=width)


def _attempts(sets: Sequence[ReadSet]) -> Markup:
    caption = (
        "By turns from the hardest questions that were solved at times and from the hardest that never were, "
        "the first attempt of each kind."
    )
    groups = [(one.name, list(one.cards.values())) for one in sets if one.cards]
    return part_of(PARTS, "attempts", groups, caption)


def _rule(sets: Sequence[ReadSet]) -> str:
    """What the page leaves out, and where it is."""
    num_cards = sum(len(one.cards) for one in sets)
    num_rows = sum(len(one.reading.rows) for one in sets)
    return (
        f"This page has {num_cards} attempts (at most {PAGE_ATTEMPTS}; long texts without their middle) and "
        f"{num_rows:,} questions with at most {MAX_CELLS} squares each, so that it stays a few megabytes "
        "however many attempts were made. Numbers and distributions are of all attempts. An attempt that is "
        "not here is the line that its square names, in attempts/ of this folder. Made from results.json, "
        "manifest.json, config.toml and attempts/."
    )
