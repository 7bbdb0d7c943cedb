"""The viewer as one file: some trajectories of a run, with all that the page shows of it, to be kept or sent.

    places ──questions that the page asks──> RunReader ──compressed──> <script type="application/json">
    static/ ──bundle.py──> one script, whose api.js asks that table instead of a server

It opens from a disk or a mail, loads nothing from anywhere, and has no script but its own. What is hidden is
left out, and so is what a page of five megabytes has no room for: tokens first, then whole trajectories.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from markupsafe import escape

from rocstar.engine.record.reading import RecordError
from rocstar.train.reading.view.answers import encoded
from rocstar.train.reading.view.bundle import bundle
from rocstar.train.reading.view.conversation import PAGE_TOKENS, WithheldError
from rocstar.train.reading.view.page_files import page_files
from rocstar.train.reading.view.reader import NothingThereError, RunReader
from rocstar.train.reading.view.viewed_run import STEPS
from rocstar.train.recipe.errors import ConfigError

MOST: Final = 50
"""Trajectories of a page."""
ROOM: Final = 4_700_000
"""Characters of all answers, so that a page stays below five megabytes."""
BINS: Final = 600
DIGITS: Final = 4
"""Of a log-prob, and of what the learner made of a token: exact ones would take most of the room."""

Place = tuple[str, int]
"""A file's name without its ending, and the row in it."""


class _Kept:
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


def export_page(
    reader: RunReader, run: str, collection: str, places: Sequence[Place], *, made: str, start: str = "run"
) -> str:
    """The page of these trajectories of a collection; `made` says when, and `start` is the page that it opens
    with. NothingThereError for none of them, or for more than MOST."""
    if not 0 < len(places) <= MOST:
        raise NothingThereError(f"choose 1 to {MOST} trajectories, these are {len(places)}")
    kept, mine = _Kept(), {"run": run}
    told = kept.ask("run", mine, partial(reader.run, run))
    if told is None:
        raise NothingThereError(f"there is no run {run!r}")
    summaries = [one for one in reader.runs()["runs"] if one["name"] == run]
    kept.ask("runs", {}, lambda: {"runs": summaries})
    kept.ask("groups", mine, partial(reader.groups_of, run))
    kept.ask("families", mine, partial(reader.families, run))
    kept.ask("alarms", mine, partial(reader.alarms, run))
    for step in told["evaluated"]:
        _keep_evaluation(kept, reader, run, step)
    of = {} if collection == STEPS else {"of": collection}
    shown = _keep_conversations(kept, reader, run, collection, of, places)
    if collection == STEPS:
        _keep_surroundings(kept, reader, run, [row for _, row in shown])
    for place, _ in shown:
        _keep_tokens(kept, reader, run, collection, of, place)
    about = {
        "made": made,
        "start": f"#/{start}?{urlencode({'run': run, **of})}",
        "left_out": len(places) - len(shown),
    }
    return _document(f"rocstar: {run}", about, kept.texts)


def now_as_text() -> str:
    """What a page says of when it was made."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def _keep_evaluation(kept: _Kept, reader: RunReader, run: str, step: str) -> None:
    at = {"run": run, "step": step}
    found = kept.ask("evaluation", at, partial(reader.evaluation, run, step))
    for name in found["sets"] if found else ():
        kept.ask("grid", {**at, "set": name}, partial(reader.grid, run, step, name))


def _keep_conversations(
    kept: _Kept, reader: RunReader, run: str, collection: str, of: dict[str, str], places: Iterable[Place]
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


def _keep_surroundings(kept: _Kept, reader: RunReader, run: str, rows: Sequence[dict[str, Any]]) -> None:
    """The groups, tasks and steps that these rows are of."""
    for step, task in dict.fromkeys((row["step"], row["task"]) for row in rows):
        asked = {"run": run, "step": step, "task": task}
        kept.ask("group", asked, partial(reader.group, run, step=step, task=int(task, 16)))
    for task in dict.fromkeys(row["task"] for row in rows):
        kept.ask("task", {"run": run, "task": task}, partial(reader.task, run, task=int(task, 16)))
    for step in dict.fromkeys(row["step"] for row in rows):
        kept.ask("timeline", {"run": run, "step": step}, partial(reader.timeline, run, step))


def _keep_tokens(
    kept: _Kept, reader: RunReader, run: str, collection: str, of: dict[str, str], place: Place
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


def _document(title: str, about: dict[str, Any], answers: dict[str, str]) -> str:
    files = page_files()
    lines = files["index.html"].splitlines()
    begin = lines.index("<body>")
    body = [line for line in lines[begin:] if not line.startswith(("</body>", "</html>"))]
    script = files["hover.js"] + bundle(files, "app.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    told = json.dumps({**about, "answers": answers}).replace("<", "\\u003c")
    head = [line for line in lines[:begin] if "/static/" not in line and not line.startswith("<title>")]
    head.insert(4, f'<meta http-equiv="Content-Security-Policy" content="{policy}">')
    return "\n".join([
        *head[:-1],
        f"<title>{escape(title)}</title>",
        f"<style>{files['view.css']}</style>",
        head[-1],
        *body,
        f'<script type="application/json" id="kept">{told}</script>',
        f"<script>{script}</script>",
        "</body>",
        "</html>",
        "",
    ])  # fmt: skip
