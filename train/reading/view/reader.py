"""The requests of the page as methods that return plain values. Not thread-safe, see web.py.

Raises NothingThereError for objects that do not exist (any more), ConfigError for invalid requests,
WithheldError for withheld tasks, and RecordError for incomplete files.
"""

from __future__ import annotations

import shlex
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rocstar.engine.record.json_record import RecordError
from rocstar.engine.record.learned import LearnedTokens
from rocstar.train.reading.diagnosis.diagnose import diagnose
from rocstar.train.reading.diagnosis.doctor_command import as_plain
from rocstar.train.reading.view import drawings
from rocstar.train.reading.view.conversation import WithheldError, check_shown, conversation, overview, tokens
from rocstar.train.reading.view.evaluation_page import compare_page, evaluation_page, grid
from rocstar.train.reading.view.families import families, families_drawing
from rocstar.train.reading.view.group_page import group, pass_rates, roc_settings, task_over_steps
from rocstar.train.reading.view.listing import Listing
from rocstar.train.reading.view.run_facts import numbers_of, starts_of, tiles_of
from rocstar.train.reading.view.sample import sample_listing
from rocstar.train.reading.view.text_search import search
from rocstar.train.reading.view.timeline import timeline_of_step, trajectory_timeline
from rocstar.train.reading.view.trajectory_filter import Places, filter_trajectories
from rocstar.train.reading.view.viewed_run import STEPS, ViewedRun
from rocstar.train.record.manifest import ManifestError
from rocstar.train.record.metrics import MetricsFileError
from rocstar.train.record.run_directory import METRICS, complete_checkpoints

MAX_PAGE: Final = 500
"""Rows of one answer."""

MAX_ORDERS: Final = 4
MAX_RECORDS: Final = 8


class NothingThereError(LookupError):
    """The requested object does not exist; the message names it."""


class RunReader:
    """The runs of an index, with a cache of recent requests."""

    def __init__(self, runs: Callable[[], Mapping[str, ViewedRun]], *, reveal: bool) -> None:
        """
        Args:
            runs: returns all runs by name; a name keeps its object while its run exists.
            reveal: show tasks whose licence asks that they are not shown.
        """
        self._runs = runs
        self._reveal = reveal
        self._orders: OrderedDict[tuple[Any, ...], Places] = OrderedDict()
        self._records: OrderedDict[tuple[Any, ...], Mapping[str, Any]] = OrderedDict()

    def stamps(self) -> dict[str, str]:
        """Return a stamp per run that changes with it."""
        return {name: run.stamp() for name, run in self._runs().items()}

    def runs(self) -> dict[str, Any]:
        """The list of runs."""
        return {"runs": [drawings.summary(run) for run in self._runs().values()]}

    def run(self, name: str) -> dict[str, Any]:
        """A run's own page."""
        run = self._run(name)
        rows = run.metrics()
        return {
            **drawings.summary(run),
            "tiles": tiles_of(rows),
            "charts": drawings.charts(rows) if rows else [],
            "time": drawings.time_parts(rows),
            "numbers": numbers_of(rows),
            "recipe": run.recipe_text(),
            "starts": starts_of(run.path) if run.path.is_dir() else [],
            "growing": run.growing(),
            "collections": run.collections(),
        }

    def groups_of(self, name: str, step: int | None = None) -> dict[str, Any]:
        """Return the group results of a step, by default the last."""
        listing = self._listing(name, STEPS)
        if not len(listing.rows):
            raise NothingThereError(f"{name} has no finished step")
        found = pass_rates(listing, step=int(listing.rows["step"].max()) if step is None else step)
        return {**found, "drawing": drawings.pass_rate_drawing(found["groups"], found["step"])}

    def overlay(self, names: Sequence[str]) -> dict[str, Any]:
        """Several runs in the same drawings."""
        return {"runs": list(names), "charts": drawings.overlays({n: self._run(n).metrics() for n in names})}

    def rows(
        self, name: str, collection: str, *, words: str, sort: str, start: int, num: int
    ) -> dict[str, Any]:
        """A part of the list of trajectories, with how many there are."""
        listing = self._listing(name, collection)
        places = self._order(listing, name, collection, words, sort)
        shown = places[max(0, start) : max(0, start) + min(num, MAX_PAGE)]
        buckets = listing.rows["bucket"][places]
        return {
            "total": len(listing.rows),
            "matched": len(places),
            "start": start,
            "rows": [listing.told(int(at)) for at in shown],
            "buckets": {name: int((buckets == code).sum()) for code, name in enumerate(listing.buckets)},
            "correct": int(listing.rows["is_correct"][places].sum()),
            "steps": len(listing.files),
            "problems": listing.problems[:5],
        }

    def search(
        self, name: str, collection: str, *, words: str, sort: str, text: str, start: int
    ) -> dict[str, Any]:
        """The next hits of a text among the chosen trajectories."""
        listing = self._listing(name, collection)
        places = self._order(listing, name, collection, words, sort)
        return search(listing, places, text, start=start, reveal=self._reveal)

    def conversation(self, name: str, collection: str, stem: str, row: int) -> dict[str, Any]:
        """Return a trajectory, with the command that recomputes its step."""
        run, record = self._run(name), self._record(name, collection, stem, row)
        told = conversation(record, reveal=self._reveal)
        listing = self._listing(name, collection)
        listed = listing.told(_place(listing, stem, row))
        replay = f"rocstar replay {shlex.quote(str(run.path))} --step {record.get('step')}"
        is_step = collection == STEPS and bool(run.config())
        timeline = trajectory_timeline(record)
        return {
            **told,
            "listed": listed,
            "replay": replay if is_step else None,
            "chat": _chat_command(run, listing, stem, row),
            "timeline": None if timeline is None else timeline.as_json(),
        }

    def tokens(
        self, name: str, collection: str, stem: str, row: int, *, start: int, stop: int
    ) -> dict[str, Any]:
        """Columns of tokens."""
        record = self._shown(name, collection, stem, row)
        learned = self._learned(name, collection, stem, record)
        return tokens(record, self._run(name).texts, learned, start=start, stop=stop)

    def strip(self, name: str, collection: str, stem: str, row: int, *, bins: int) -> dict[str, Any]:
        """Return a trajectory in `bins` parts."""
        record = self._shown(name, collection, stem, row)
        return overview(record, self._learned(name, collection, stem, record), bins)

    def alarms(self, name: str) -> dict[str, Any]:
        """Return the diagnosis as of `rocstar doctor --json`; `problem` is the reason if there is none.

        RecordError, ConfigError: a record or an evaluation of the run is damaged.
        """
        run = self._run(name)
        if not (run.path / METRICS).is_file():
            return {"problem": "no metrics.jsonl: what did not train has no alarms"}
        try:
            return {**as_plain(diagnose(run.path)), "problem": ""}
        except (MetricsFileError, ManifestError) as error:
            return {"problem": str(error)}

    def families(self, name: str) -> dict[str, Any]:
        """Return the rewards by source of the tasks."""
        found = families(self._listing(name, STEPS))
        drawing = families_drawing(found)
        return {"families": found, "drawing": None if drawing is None else drawing.as_json()}

    def timeline(self, name: str, step: int) -> dict[str, Any]:
        """Return the timeline of a step."""
        return timeline_of_step(self._listing(name, STEPS), step)

    def group(self, name: str, *, step: int, task: int) -> dict[str, Any]:
        """Return the trajectories of a group and their question, None if it is withheld."""
        run, listing = self._run(name), self._listing(name, STEPS)
        rows = [row for row in run.metrics() if row["phase"] == "rl" and row["step"] == step]
        draw, ledger = roc_settings(run.config(step)), rows[-1] if rows else None
        found = group(listing, step=step, task=task, draw=draw, ledger=ledger)
        if not found["siblings"]:
            raise NothingThereError(f"{name} has no group of this task at step {step}")
        return {**found, "asked": self._asked(name, found["siblings"][0])}

    def _asked(self, name: str, sibling: Mapping[str, Any]) -> dict[str, Any] | None:
        try:
            task = self._shown(name, STEPS, sibling["file"], sibling["row"]).get("task") or {}
        except (WithheldError, RecordError):  # the index has the group's data anyway
            return None
        return {part: task.get(part) for part in ("question", "answer")}

    def task(self, name: str, *, task: int) -> dict[str, Any]:
        """A task over the steps of the run, and of the other runs that have it."""
        found = {name: task_over_steps(self._listing(name, STEPS), task)}
        if not found[name]:
            raise NothingThereError(f"{name} has no trajectory of this task")
        for other, run in self._runs().items():
            listing = run.listing(STEPS) if other != name else None
            if listing is not None and (steps := task_over_steps(listing, task)):
                found[other] = steps
        return {
            "task": format(task, "x"),
            "name": self._listing(name, STEPS).names.get(task, ""),
            "runs": found,
            "drawing": drawings.task_drawing(found),
        }

    def evaluation(self, name: str, step: str) -> dict[str, Any]:
        """The scores of an evaluation."""
        run = self._run(name)
        return {**evaluation_page(self._evaluation(name, step)), "evaluated": list(run.evaluations())}

    def grid(self, name: str, step: str, set_name: str) -> dict[str, Any]:
        """The questions of a set."""
        listing = self._run(name).listing(f"{step}:{set_name}")
        return grid(self._evaluation(name, step), set_name, listing, reveal=self._reveal)

    def paired(self, a: tuple[str, str], b: tuple[str, str]) -> dict[str, Any]:
        """Two evaluations (run, step), question by question."""
        return compare_page(self._evaluation(*a), self._evaluation(*b))

    def sample(self, name: str, collection: str, most: int) -> list[tuple[str, int]]:
        """Return the file and row of a sample of trajectories."""
        listing = self._listing(name, collection)
        return [(listing.files[file].stem, row) for file, row in sample_listing(listing, most)]

    def _run(self, name: str) -> ViewedRun:
        runs = self._runs()
        if name not in runs:
            raise NothingThereError(f"there is no run {name!r}")
        return runs[name]

    def _listing(self, name: str, collection: str) -> Listing:
        listing = self._run(name).listing(collection)
        if listing is None:
            raise NothingThereError(f"{name} has no trajectories of {collection!r}")
        return listing

    def _evaluation(self, name: str, step: str) -> Any:
        folder = self._run(name).evaluations().get(step)
        if folder is None:
            raise NothingThereError(f"{name} has no finished evaluation at step {step!r}")
        return folder

    def _order(self, listing: Listing, name: str, collection: str, words: str, sort: str) -> Places:
        key = (name, collection, id(listing), listing.generation, words, sort)
        places = self._orders.pop(key, None)
        if places is None:
            places = filter_trajectories(listing, words, sort)
        self._orders[key] = places
        if len(self._orders) > MAX_ORDERS:
            self._orders.popitem(last=False)
        return places

    def _record(self, name: str, collection: str, stem: str, row: int) -> Mapping[str, Any]:
        listing = self._listing(name, collection)
        _place(listing, stem, row)
        key = (name, collection, id(listing), listing.generation, stem, row)
        record = self._records.pop(key, None)
        if record is None:
            number = listing.number_of(stem)
            record = listing.opened(-1 if number is None else number).record(row)
        self._records[key] = record
        if len(self._records) > MAX_RECORDS:
            self._records.popitem(last=False)
        return record

    def _learned(
        self, name: str, collection: str, stem: str, record: Mapping[str, Any]
    ) -> LearnedTokens | None:
        listing = self._listing(name, collection)
        number = listing.number_of(stem)
        return None if number is None else listing.opened(number).learned(str(record.get("id")))

    def _shown(self, name: str, collection: str, stem: str, row: int) -> Mapping[str, Any]:
        """A record that may be shown."""
        record = self._record(name, collection, stem, row)
        check_shown(record, reveal=self._reveal)
        return record


def _chat_command(run: ViewedRun, listing: Listing, stem: str, row: int) -> str:
    """Return the command to chat from the end of this trajectory; @TURN after it starts before that turn."""
    number = listing.number_of(stem)
    file = listing.files[0 if number is None else number]
    model = shlex.quote(str(run.path)) if run.path.is_dir() and complete_checkpoints(run.path) else "MODEL"
    return f"rocstar chat {model} --from {shlex.quote(f'{file}:{row}')}"


def _place(listing: Listing, stem: str, row: int) -> int:
    """The place of a row in the table. NothingThereError where it has none."""
    number = listing.number_of(stem)
    files = listing.rows["file"]
    if number is not None:
        first = int(files.searchsorted(number))
        if row >= 0 and first + row < len(files) and files[first + row] == number:
            return first + row
    raise NothingThereError(f"there is no trajectory {row} in {stem!r}")
