"""report.html of a run and of an evaluation: the viewer as one file that begins with its page.

    metrics.jsonl, config.toml, manifest.json, ten trajectories of first and last step ──> RUN/report.html
    results.json, manifest.json, config.toml, at most 40 attempts ──> EVALUATION/report.html

Of a run only the records of its first and its last step are opened, so that memory does not grow with the
number of steps. A report can be made at any time, also while the run continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from rocstar.train.evaluation.evaluation_folder import EvaluationFolder
from rocstar.train.evaluation.tables import read_results
from rocstar.train.reading.view.document import build_document, now_as_text, static_table
from rocstar.train.reading.view.evaluation_page import select_attempts
from rocstar.train.reading.view.export_page import ExportedResponses
from rocstar.train.reading.view.reader import RunReader
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
