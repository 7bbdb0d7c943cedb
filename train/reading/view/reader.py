"""The requests of the page as methods that return plain values. Not thread-safe, see web.py.

Raises NothingThereError for objects that do not exist (any more), ConfigError for invalid requests,
WithheldError for withheld tasks, and RecordError for incomplete files.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final

from rocstar.engine.record.files import FRAMES
from rocstar.engine.record.learned import LearnedStep, LearnedTokens
from rocstar.sandbox.extras import shell_command
from rocstar.train.reading.diagnosis.diagnose import diagnose
from rocstar.train.reading.diagnosis.doctor_command import as_plain
from rocstar.train.reading.view import drawings
from rocstar.train.reading.view.conversation import check_shown, conversation, overview, row_texts, tokens
from rocstar.train.reading.view.drawings import families, families_drawing
from rocstar.train.reading.view.evaluation_page import compare_page, evaluation_page, grid, list_questions
from rocstar.train.reading.view.group_page import group, pass_rates, task_over_steps
from rocstar.train.reading.view.listing import Listing
from rocstar.train.reading.view.run_facts import differing_fields, head_facts, metrics_of, summary, tiles_of
from rocstar.train.reading.view.trajectory_filter import filter_trajectories, sample_listing, search
from rocstar.train.reading.view.viewed_run import STEPS, ViewedRun
from rocstar.train.recipe.load import flat_fields
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
        # `generation` belongs to the keys only: the rows of a listing change.
        self._filtered = lru_cache(MAX_ORDERS)(
            lambda listing, generation, words, sort: filter_trajectories(listing, words, sort)
        )
        self._record = lru_cache(MAX_RECORDS)(lambda listing, generation, file, row: listing.opened(file).record(row))

    def stamps(self) -> dict[str, str]:
        """Return a stamp per run that changes with it."""
        return {name: run.stamp() for name, run in self._runs().items()}

    def runs(self) -> dict[str, Any]:
        """The list of runs."""
        return {"runs": [summary(run) for run in self._runs().values()]}

    def run(self, name: str) -> dict[str, Any]:
        """A run's own page."""
        run = self._run(name)
        rows = run.metrics()
        return {
            **summary(run),
            **head_facts(run),
            "tiles": tiles_of(rows),
            "charts": drawings.charts(rows),
            "time": drawings.time_parts(rows),
            "config": run.recipe_text(),
            "growing": run.growing(),
            "collections": run.collections(),
        }

    def metrics(self, name: str) -> dict[str, Any]:
        """Return all metrics of a run with their values."""
        return {"metrics": metrics_of(self._run(name).metrics())}

    def log(self, name: str) -> dict[str, Any]:
        """Return the last lines of the console log."""
        return {"lines": self._run(name).log()}

    def groups_of(self, name: str, step: int | None = None) -> dict[str, Any]:
        """Return the group results of a step, by default the last."""
        listing = self._listing(name, STEPS)
        if not len(listing.rows):
            raise NothingThereError(f"{name} has no finished step")
        found = pass_rates(listing, step=int(listing.rows["step"].max()) if step is None else step)
        return {**found, "drawing": drawings.pass_rate_drawing(found["groups"], found["step"])}

    def overlay(self, names: Sequence[str]) -> dict[str, Any]:
        """Return several runs in the same charts, and the fields in which their recipes differ."""
        runs = [self._run(name) for name in names]
        recipes = {run.name: flat_fields(config) for run in runs if (config := run.config())}
        return {
            "runs": [summary(run) for run in runs],
            "charts": drawings.overlays({run.name: run.metrics() for run in runs}),
            "differences": {"runs": list(recipes), "fields": differing_fields(list(recipes.values()))},
        }

    def rows(self, name: str, collection: str, *, words: str, sort: str, start: int, num: int) -> dict[str, Any]:
        """A part of the list of trajectories, with how many there are."""
        listing = self._listing(name, collection)
        places = self._filtered(listing, listing.generation, words, sort)
        shown = places[max(0, start) : max(0, start) + min(num, MAX_PAGE)]
        buckets = listing.rows["bucket"][places]
        return {
            "total": len(listing.rows),
            "matched": len(places),
            "start": start,
            "rows": [listing.row_with_texts(int(at), reveal=self._reveal) for at in shown],
            "buckets": {name: int((buckets == code).sum()) for code, name in enumerate(listing.buckets)},
            "correct": int(listing.rows["is_correct"][places].sum()),
            "steps": len(listing.files),
            "problems": listing.problems[:5],
        }

    def search(self, name: str, collection: str, *, words: str, sort: str, text: str, start: int) -> dict[str, Any]:
        """The next hits of a text among the chosen trajectories."""
        listing = self._listing(name, collection)
        places = self._filtered(listing, listing.generation, words, sort)
        return search(listing, places, text, start=start, reveal=self._reveal)

    def conversation(self, name: str, collection: str, stem: str, row: int) -> dict[str, Any]:
        """Return a trajectory, with the command that recomputes its step."""
        run = self._run(name)
        listing, at, record = self._trajectory(name, collection, stem, row)
        is_step = collection == STEPS and bool(run.config())
        has_model = run.path.is_dir() and complete_checkpoints(run.path)
        start = f"{listing.files[listing.rows['file'][at]]}:{row}"
        return {
            **conversation(record),
            "listed": {**listing.row_as_json(at), **row_texts(record)},
            "siblings": [
                {name: row[name] for name in ("file", "row", "attempt", "verdict", "truncated")}
                for row in map(listing.row_as_json, listing.group_at(at))
            ],
            "replay": shell_command("replay", run.path, "--step", record.get("step")) if is_step else None,
            # From the end of this trajectory; @TURN after it starts before that turn.
            "chat": shell_command("chat", run.path if has_model else "MODEL", "--from", start),
        }

    def tokens(self, name: str, collection: str, stem: str, row: int, *, start: int, stop: int) -> dict[str, Any]:
        """Columns of tokens."""
        listing, at, record = self._trajectory(name, collection, stem, row)
        learned = _learned(listing, at, record)
        return tokens(record, self._run(name).texts, learned, start=start, stop=stop)

    def strip(self, name: str, collection: str, stem: str, row: int, *, bins: int) -> dict[str, Any]:
        """Return a trajectory in `bins` parts."""
        listing, at, record = self._trajectory(name, collection, stem, row)
        return overview(record, _learned(listing, at, record), bins)

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
        chart = families_drawing(found)
        return {"families": found, "drawing": None if chart is None else chart.as_json()}

    def group(self, name: str, *, step: int, task: int) -> dict[str, Any]:
        """Return the trajectories of a group."""
        run, listing = self._run(name), self._listing(name, STEPS)
        rows = [row for row in run.metrics() if row["phase"] == "rl" and row["step"] == step]
        row = rows[-1] if rows else None
        found = group(listing, step=step, task=task, config=run.config(step), row=row, reveal=self._reveal)
        if not found["siblings"]:
            raise NothingThereError(f"{name} has no group of this task at step {step}")
        return found

    def task(self, name: str, *, task: int) -> dict[str, Any]:
        """A task over the steps of the run, and of the other runs that have it."""
        listing = self._listing(name, STEPS)
        found = {name: task_over_steps(listing, task)}
        if not found[name]:
            raise NothingThereError(f"{name} has no trajectory of this task")
        for other, run in self._runs().items():
            others = run.listing(STEPS) if other != name else None
            if others is not None and (steps := task_over_steps(others, task)):
                found[other] = steps
        place = int((listing.rows["task"] == task).argmax())
        return {
            "listed": listing.row_with_texts(place, reveal=self._reveal),
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
        folders = self._evaluation(*a), self._evaluation(*b)
        return compare_page(*folders, partial(self._questions, *a), partial(self._questions, *b))

    def _questions(self, name: str, step: str, set_name: str) -> list[dict[str, Any]]:
        listing = self._run(name).listing(f"{step}:{set_name}")
        return list_questions(self._evaluation(name, step), set_name, listing, reveal=self._reveal)

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

    def _trajectory(self, name: str, collection: str, stem: str, row: int) -> tuple[Listing, int, Mapping[str, Any]]:
        """Return a listing, the place in it of a row of a file, and its record, which may be shown.

        NothingThereError for an unknown row, WithheldError for a hidden one.
        """
        listing = self._listing(name, collection)
        number, files = listing.number_of(stem), listing.rows["file"]
        at = -1 if number is None or row < 0 else int(files.searchsorted(number)) + row
        if not 0 <= at < len(files) or files[at] != number:
            raise NothingThereError(f"there is no trajectory {row} in {stem!r}")
        record = self._record(listing, listing.generation, number, row)
        check_shown(record, reveal=self._reveal)
        return listing, at, record


def _learned(listing: Listing, at: int, record: Mapping[str, Any]) -> LearnedTokens | None:
    """Return the learner's values, read each time: a rank may write them after the index."""
    path = listing.files[listing.rows["file"][at]]
    name, number = str(record.get("id")), len(record.get("starts") or (0,))
    return LearnedStep(path).find(name, number) if path.suffix == FRAMES else None
