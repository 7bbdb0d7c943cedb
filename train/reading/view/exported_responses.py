"""Encode the responses of a reader, and store them for a page without a server.

    requests of the page ──> RunReader ──compressed──> texts of a <script type="application/json">

The caller requests the most important ones first; requests beyond the size limit are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from rocstar.engine.record.reading import RecordError
from rocstar.train.reading.view.conversation import PAGE_TOKENS, WithheldError
from rocstar.train.reading.view.document import pack
from rocstar.train.reading.view.reader import NothingThereError, RunReader
from rocstar.train.recipe.errors import ConfigError

ROOM: Final = 4_700_000
"""Characters of all answers, so that a page stays below five megabytes."""

BINS: Final = 600
DIGITS: Final = 4
"""The digits of log-probs and learner values: exact ones would take most of the space."""

Place = tuple[str, int]
"""A file's name without its ending, and the row in it."""


class ExportedResponses:
    """Compressed responses by request.

    Invariant: at most ROOM characters are stored, and a stored response equals the server's.
    """

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._room = ROOM

    def ask(
        self, path: str, asked: Mapping[str, Any], answer: Callable[[], Any], *, is_rounded: bool = False
    ) -> Any:
        """Keep the answer to this question; `is_rounded`: its numbers to so many DIGITS. None where there is
        none to be shown, or no room for it."""
        try:
            told = answer()
        except (NothingThereError, RecordError, ConfigError, WithheldError):
            return None
        text = pack(_rounded(told) if is_rounded else told)
        if len(text) > self._room:
            return None
        self._room -= len(text)
        self.texts["&".join([path, *(f"{name}={asked[name]}" for name in sorted(asked))])] = text
        return told


def keep_evaluation(kept: ExportedResponses, reader: RunReader, run: str, step: str) -> dict[str, Any]:
    """Keep an evaluation, and return the questions of its sets that are kept."""
    at = {"run": run, "step": step}
    found = kept.ask("evaluation", at, partial(reader.evaluation, run, step))
    names = found["sets"] if found else ()
    grids = {
        name: kept.ask("grid", {**at, "set": name}, partial(reader.grid, run, step, name)) for name in names
    }
    return {name: grid for name, grid in grids.items() if grid is not None}


def keep_conversations(
    kept: ExportedResponses,
    reader: RunReader,
    run: str,
    collection: str,
    of: Mapping[str, str],
    places: Iterable[Place],
) -> list[tuple[Place, dict[str, Any]]]:
    """The places that are kept, with their rows of the list, which is kept, too."""
    shown = []
    for stem, row in places:
        where = {"run": run, **of, "file": stem, "row": row}
        found = kept.ask("conversation", where, partial(reader.conversation, run, collection, stem, row))
        if found is not None:
            shown.append(((stem, row), found["listed"]))
    rows = [row for _, row in shown]
    buckets = [row["bucket"] for row in rows]
    whole = reader.rows(run, collection, words="", sort="", start=0, num=0)
    listed = {
        "total": whole["total"],
        "matched": len(rows),
        "rows": rows,
        "buckets": {name: buckets.count(name) for name in dict.fromkeys(buckets)},
        "correct": sum(row["verdict"] == "correct" for row in rows),
        "steps": len({row["file"] for row in rows}),
        "problems": whole["problems"],
    }
    kept.ask("list", {"run": run, **of}, lambda: listed)
    return shown


def keep_groups(
    kept: ExportedResponses, reader: RunReader, run: str, rows: Sequence[Mapping[str, Any]]
) -> None:
    """The groups that these rows are of."""
    for step, task in dict.fromkeys((row["step"], row["task"]) for row in rows):
        asked = {"run": run, "step": step, "task": task}
        kept.ask("group", asked, partial(reader.group, run, step=step, task=int(task, 16)))


def keep_tokens(
    kept: ExportedResponses, reader: RunReader, run: str, collection: str, of: Mapping[str, str], place: Place
) -> None:
    """A trajectory's strip, and its tokens page by page."""
    where = {"run": run, **of, "file": place[0], "row": place[1]}
    kept.ask("strip", where, partial(reader.strip, run, collection, *place, bins=BINS), is_rounded=True)
    start, total = 0, 1
    while start < total:
        page = partial(reader.tokens, run, collection, *place, start=start, stop=start + PAGE_TOKENS)
        found = kept.ask("tokens", {**where, "from": start}, page, is_rounded=True)
        if found is None:
            return
        start, total = start + PAGE_TOKENS, found["total"]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value
