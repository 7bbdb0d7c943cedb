"""What a page without a server answers with: a reader's answers under what was asked, within its room.

    questions that the page asks ──> RunReader ──compressed──> texts of a <script type="application/json">

Who fills it asks first for what matters most: what has no room any more is left out.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from rocstar.engine.record.reading import RecordError
from rocstar.train.reading.view.answers import encoded
from rocstar.train.reading.view.conversation import PAGE_TOKENS, WithheldError
from rocstar.train.reading.view.reader import NothingThereError, RunReader
from rocstar.train.recipe.errors import ConfigError

ROOM: Final = 4_700_000
"""Characters of all answers, so that a page stays below five megabytes."""
BINS: Final = 600
DIGITS: Final = 4
"""Of a log-prob, and of what the learner made of a token: exact ones would take most of the room."""

Place = tuple[str, int]
"""A file's name without its ending, and the row in it."""


class KeptAnswers:
    """Answers by what was asked, compressed one by one.

    Invariant: no more than ROOM characters are kept, and what is kept is an answer as a server would give it.
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
        packed = zlib.compress(encoded(_rounded(told) if is_rounded else told), 9)
        text = base64.b64encode(packed).decode()
        if len(text) > self._room:
            return None
        self._room -= len(text)
        self.texts["&".join([path, *(f"{name}={asked[name]}" for name in sorted(asked))])] = text
        return told


def keep_evaluation(kept: KeptAnswers, reader: RunReader, run: str, step: str) -> None:
    """An evaluation with the questions of its sets."""
    at = {"run": run, "step": step}
    found = kept.ask("evaluation", at, partial(reader.evaluation, run, step))
    for name in found["sets"] if found else ():
        kept.ask("grid", {**at, "set": name}, partial(reader.grid, run, step, name))


def keep_conversations(
    kept: KeptAnswers,
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
    listed = {
        "total": reader.rows(run, collection, words="", sort="", start=0, num=0)["total"],
        "matched": len(rows),
        "rows": rows,
        "buckets": {name: buckets.count(name) for name in dict.fromkeys(buckets)},
        "correct": sum(row["verdict"] == "correct" for row in rows),
        "steps": len({row["file"] for row in rows}),
        "problems": [],
    }
    kept.ask("list", {"run": run, **of}, lambda: listed)
    return shown


def keep_groups(kept: KeptAnswers, reader: RunReader, run: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """The groups that these rows are of."""
    for step, task in dict.fromkeys((row["step"], row["task"]) for row in rows):
        asked = {"run": run, "step": step, "task": task}
        kept.ask("group", asked, partial(reader.group, run, step=step, task=int(task, 16)))


def keep_tokens(
    kept: KeptAnswers, reader: RunReader, run: str, collection: str, of: Mapping[str, str], place: Place
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
