"""The viewer as one file: some trajectories of a run, with the page's data about them.

    requests of the page ──> RunReader ──compressed──> texts of a <script> of JSON ──document.py──> one HTML

Withheld tasks are left out, and so are responses beyond the size limit: the most important ones are requested
first, and tokens last.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from rocstar.engine.record.json_record import RecordError
from rocstar.train.evaluation.evaluation_folder import EvaluationFolder
from rocstar.train.evaluation.tables import read_results
from rocstar.train.reading.view.conversation import PAGE_TOKENS, WithheldError
from rocstar.train.reading.view.document import build_document, now_as_text, pack, static_table
from rocstar.train.reading.view.evaluation_page import select_attempts
from rocstar.train.reading.view.reader import NothingThereError, RunReader
from rocstar.train.reading.view.run_facts import metrics_of
from rocstar.train.reading.view.viewed_run import STEPS, ViewedRun, records_of, sets_of
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.metrics import Row, read_metrics
from rocstar.train.record.run_directory import REPORT, replace_text

NUM_TRAJECTORIES: Final = 10
NUM_ATTEMPTS: Final = 40
"""Attempts of all sets that an evaluation's report has in full."""


def _rows(run_dir: Path) -> list[Row]:
    """Return the rows of metrics.jsonl, of which there is at least one."""
    path = run_dir / "metrics.jsonl"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; give the directory of a run, as `rocstar train` prints it")
    rows = read_metrics(path)
    if not rows:
        raise ConfigError(f"{path} has no rows yet; wait for the first step")
    return rows


def write_report(run_dir: Path) -> Path:
    """Write `run_dir/report.html` atomically and return its path. Raises as `report_page`."""
    path = run_dir / REPORT
    replace_text(path, report_page(run_dir))
    return path


def report_page(run_dir: Path) -> str:
    """Return the page of a run, which needs no other file.

    Raises:
        ConfigError: the directory has no metrics.jsonl, or one without rows.
        MetricsFileError: metrics.jsonl is damaged before its last line.
    """
    rows = _rows(run_dir)
    name = run_dir.resolve().name
    run = ViewedRun(name, run_dir, only=_ends(records_of(run_dir)))
    reader = RunReader(lambda: {name: run}, reveal=False)
    kept = ExportedResponses(reader, name)
    kept.ask("run", {"run": name}, partial(reader.run, name))
    kept.ask("runs", {}, reader.runs)
    kept.ask("groups", {"run": name}, partial(reader.groups_of, name))
    for step in _ends(list(run.evaluations())):
        kept.keep_evaluation(step)
    places = reader.sample(name, STEPS, NUM_TRAJECTORIES)
    shown = kept.keep_conversations(STEPS, places)
    kept.keep_groups(row for _, row in shown)
    for place, _ in shown:
        kept.keep_tokens(STEPS, place)
    about = _about("run", len(places) - len(shown), run=name)
    kept.keep_run_tabs()
    columns = ("name", "first", "last", "unit", "meaning")
    table = static_table(name, columns, ([one[column] for column in columns] for one in metrics_of(rows)))
    return build_document(f"rocstar: {name}", about, kept.texts, table)


def write_eval_report(folder: Path, *, reveal: bool = False) -> Path:
    """Write `folder/report.html` of an evaluation atomically and return its path.

    reveal: include questions, answers and attempts of sets whose licence asks that they are not shown.

    Raises:
        ConfigError: the folder holds no finished evaluation, or its results.json is damaged.
    """
    read_results(EvaluationFolder(folder).results)
    name = folder.resolve().name
    run = ViewedRun(name, folder)
    reader = RunReader(lambda: {name: run}, reveal=reveal)
    kept = ExportedResponses(reader, name)
    kept.ask("runs", {}, reader.runs)
    page = reader.evaluation(name, "0")
    left_out = 0
    for set_name, found in kept.keep_evaluation("0").items():
        rows = select_attempts(found["questions"], max(1, NUM_ATTEMPTS // len(page["sets"])))
        places = [(set_name, row) for row in rows if found["shown"]]
        if set_name in sets_of(folder):
            shown = kept.keep_conversations(f"0:{set_name}", places)
            left_out += len(places) - len(shown)
    scores = page["tables"][0]
    about = _about("evaluation", left_out, run=name, step="0")
    table = static_table(page["model"], scores["head"], scores["rows"])
    text = build_document(f"rocstar: {page['model']}", about, kept.texts, table)
    replace_text(folder / REPORT, text)
    return folder / REPORT


def _ends(steps: Sequence[Any]) -> list[Any]:
    return list(dict.fromkeys([*steps[:1], *steps[-1:]]))


def _about(page: str, left_out: int, **params: str) -> dict[str, Any]:
    start = f"#/{page}?{urlencode(params)}"
    return {"made": now_as_text(), "home": page, "start": start, "left_out": left_out}


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
    cells = [[f"{row['question'] or row['name']} #{row['attempt']}", *(row[key] for key in columns)] for row in rows]
    return build_document(f"rocstar: {run}", about, kept.texts, static_table(run, head, cells))
