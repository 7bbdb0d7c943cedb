"""The viewer as one file: some trajectories of a run, with the page's data about them.

    requests of the page ──> RunReader ──compressed──> texts of a <script> of JSON ──document.py──> one HTML

Withheld tasks are left out, and so are responses beyond the size limit: the most important ones are requested
first, and tokens last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from rocstar.engine.record.json_record import RecordError
from rocstar.train.reading.view.conversation import PAGE_TOKENS, WithheldError
from rocstar.train.reading.view.document import build_document, pack, static_table
from rocstar.train.reading.view.reader import NothingThereError, RunReader
from rocstar.train.reading.view.viewed_run import STEPS
from rocstar.train.recipe.errors import ConfigError

MOST: Final = 50
"""Trajectories of a page."""
ROOM: Final = 4_700_000
"""Characters of all answers, so that a page stays below five megabytes."""
BINS: Final = 600
DIGITS: Final = 4
"""The digits of log-probs and learner values: exact ones would take most of the space."""

Place = tuple[str, int]
"""A file's name without its ending, and the row in it."""


class ExportedResponses:
    """Compressed responses about a run, by request.

    Invariant: at most ROOM characters are stored, and a stored response equals the server's.
    """

    def __init__(self, reader: RunReader, run: str) -> None:
        self.texts: dict[str, str] = {}
        self._reader, self._run, self._room = reader, run, ROOM

    def ask(self, path: str, asked: Mapping[str, Any], answer: Callable[[], Any], *, is_rounded: bool = False) -> Any:
        """Keep the answer to this question; `is_rounded`: its numbers to so many DIGITS. None where there is
        none to be shown, or no room for it."""
        try:
            response = answer()
        except (NothingThereError, RecordError, ConfigError, WithheldError):
            return None
        text = pack(_rounded(response) if is_rounded else response)
        if len(text) > self._room:
            return None
        self._room -= len(text)
        self.texts["&".join([path, *(f"{name}={asked[name]}" for name in sorted(asked))])] = text
        return response

    def keep_run_tabs(self) -> None:
        """Keep all metrics and the console log of the run. Call it last: they are large."""
        at = {"run": self._run}
        self.ask("metrics", at, partial(self._reader.metrics, self._run), is_rounded=True)
        self.ask("log", at, partial(self._reader.log, self._run))

    def keep_evaluation(self, step: str) -> dict[str, Any]:
        """Keep an evaluation, and return the questions of its sets that are kept."""
        at, reader = {"run": self._run, "step": step}, self._reader
        found = self.ask("evaluation", at, partial(reader.evaluation, self._run, step))
        grids = {
            name: self.ask("grid", {**at, "set": name}, partial(reader.grid, self._run, step, name))
            for name in (found["sets"] if found else ())
        }
        return {name: grid for name, grid in grids.items() if grid is not None}

    def keep_conversations(self, collection: str, places: Iterable[Place]) -> list[tuple[Place, dict[str, Any]]]:
        """Return the places that are kept, with their rows of the list, which is kept, too."""
        shown = []
        for place in places:
            answer = partial(self._reader.conversation, self._run, collection, *place)
            found = self.ask("conversation", self._where(collection, place), answer)
            if found is not None:
                shown.append((place, found["listed"]))
        rows = [row for _, row in shown]
        buckets = [row["bucket"] for row in rows]
        whole = self._reader.rows(self._run, collection, words="", sort="", start=0, num=0)
        listed = {
            "total": whole["total"],
            "matched": len(rows),
            "rows": rows,
            "buckets": {name: buckets.count(name) for name in dict.fromkeys(buckets)},
            "correct": sum(row["verdict"] == "correct" for row in rows),
            "steps": len({row["file"] for row in rows}),
            "problems": whole["problems"],
        }
        self.ask("list", of_collection(self._run, collection), lambda: listed)
        return shown

    def keep_groups(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Keep the groups that these rows are of."""
        for step, task in dict.fromkeys((row["step"], row["task"]) for row in rows):
            asked = {"run": self._run, "step": step, "task": task}
            self.ask("group", asked, partial(self._reader.group, self._run, step=step, task=int(task, 16)))

    def keep_tokens(self, collection: str, place: Place) -> None:
        """Keep a trajectory's strip, and its tokens page by page."""
        where, at = self._where(collection, place), (self._run, collection, *place)
        self.ask("strip", where, partial(self._reader.strip, *at, bins=BINS), is_rounded=True)
        start, total = 0, 1
        while start < total:
            page = partial(self._reader.tokens, *at, start=start, stop=start + PAGE_TOKENS)
            found = self.ask("tokens", {**where, "from": start}, page, is_rounded=True)
            if found is None:
                return
            start, total = start + PAGE_TOKENS, found["total"]

    def _where(self, collection: str, place: Place) -> dict[str, Any]:
        return of_collection(self._run, collection) | {"file": place[0], "row": place[1]}


def of_collection(run: str, collection: str) -> dict[str, Any]:
    """Return the parameters of a request about a collection; the steps of the learner are the default."""
    return {"run": run} if collection == STEPS else {"run": run, "of": collection}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value


def export_page(
    reader: RunReader, run: str, collection: str, places: Sequence[Place], *, made: str, start: str = "run"
) -> str:
    """Return the page of these trajectories of a collection; `made` is the creation time, and `start` the
    first page. NothingThereError for no trajectories, or more than MOST."""
    if not 0 < len(places) <= MOST:
        raise NothingThereError(f"choose 1 to {MOST} trajectories, these are {len(places)}")
    kept, mine = ExportedResponses(reader, run), {"run": run}
    page = kept.ask("run", mine, partial(reader.run, run))
    if page is None:
        raise NothingThereError(f"there is no run {run!r}")
    summaries = [one for one in reader.runs()["runs"] if one["name"] == run]
    kept.ask("runs", {}, lambda: {"runs": summaries})
    kept.ask("groups", mine, partial(reader.groups_of, run))
    kept.ask("families", mine, partial(reader.families, run))
    kept.ask("alarms", mine, partial(reader.alarms, run))
    for step in page["evaluated"]:
        kept.keep_evaluation(step)
    shown = kept.keep_conversations(collection, places)
    rows = [row for _, row in shown]
    if collection == STEPS:
        kept.keep_groups(rows)
        for task in dict.fromkeys(row["task"] for row in rows):
            kept.ask("task", {**mine, "task": task}, partial(reader.task, run, task=int(task, 16)))
        for step in dict.fromkeys(row["step"] for row in rows):
            kept.ask("timeline", {**mine, "step": step}, partial(reader.timeline, run, step))
    for place, _ in shown:
        kept.keep_tokens(collection, place)
    kept.keep_run_tabs()
    about = {
        "made": made,
        "start": f"#/{start}?{urlencode(of_collection(run, collection))}",
        "left_out": len(places) - len(shown),
    }
    head = ("trajectory", "step", "verdict", "decision", "tokens", "calls")
    columns = ("step", "verdict", "bucket", "tokens", "calls")
    cells = [[f"{row['question'] or row['name']} #{row['sibling']}", *(row[key] for key in columns)] for row in rows]
    return build_document(f"rocstar: {run}", about, kept.texts, static_table(run, head, cells))
