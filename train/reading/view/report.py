"""report.html of a run: the viewer as one file, with a prerendered first page.

    metrics.jsonl, config.toml, manifest.json ──> sections of markup (record/report)   ─┐
    ten trajectories of first and last step ──> responses, as of `view --export` ───────┴─> report.html

    python -m rocstar.train.reading.view.report RUN                     writes RUN/report.html
    python -m rocstar.train.reading.view.report RUN --svg PICTURE.svg   writes the reward curve as a picture

The markup can be read, searched and printed without scripts; with scripts, each of the ten trajectories links
to its tokens, times and group. Only the files of these ten are opened, and only if they have an index, so
memory does not grow with the run. It reads only the run directory, so it can be made at any time, also
while the run continues.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from rocstar.engine.record.files import FRAMES
from rocstar.train.reading.view.document import build_document
from rocstar.train.reading.view.export_page import now_as_text
from rocstar.train.reading.view.exported_responses import (
    ExportedResponses,
    Place,
    keep_conversations,
    keep_evaluation,
    keep_groups,
    keep_tokens,
)
from rocstar.train.reading.view.reader import RunReader
from rocstar.train.reading.view.viewed_run import STEPS, ViewedRun
from rocstar.train.record.metrics import MetricsFileError
from rocstar.train.record.report.curves import picture_svg
from rocstar.train.record.report.sample import RecordAt, ReportSample, sample
from rocstar.train.record.report.sections import ReportError, report_sections, rows_to_report
from rocstar.train.record.run_directory import REPORT, replace_text

HOME: Final = "report"
"""The page that this file begins with."""


class _OneRun:
    """An index with one run, which reads only some files of its steps."""

    def __init__(self, run: ViewedRun) -> None:
        self._run = run

    def runs(self) -> dict[str, ViewedRun]:
        return {self._run.name: self._run}


def write_report(run_dir: Path) -> Path:
    """Write `run_dir/report.html` atomically and return its path. Raises as `report_page`."""
    path = run_dir / REPORT
    replace_text(path, report_page(run_dir))
    return path


def report_page(run_dir: Path) -> str:
    """Return the page of a run, which needs no other file.

    Raises:
        ReportError: the directory has no metrics.jsonl, or one without rows.
        MetricsFileError: metrics.jsonl is damaged before its last line.
    """
    rows, sampled, name = rows_to_report(run_dir), sample(run_dir), run_dir.resolve().name
    kept, addresses = _answers(run_dir, name, sampled)
    about = {"made": now_as_text(), "home": HOME, "start": _address(HOME, run=name), "left_out": 0}
    sections = report_sections(run_dir, rows, sampled, addresses)
    text = build_document(f"rocstar: {name}", about, kept.texts, sections)
    # A policy may write half a surrogate pair in its arguments; it is shown as its escape.
    return text.encode(errors="backslashreplace").decode()


def _answers(
    run_dir: Path, name: str, sampled: ReportSample
) -> tuple[ExportedResponses, dict[RecordAt, str]]:
    """Return the responses for the page, and the page's addresses of its trajectories."""
    indexed = {(path.stem, row): (path, row) for (path, row), _ in sampled.shown if path.suffix == FRAMES}
    run = ViewedRun(name, run_dir, only=list(dict.fromkeys(path for path, _ in indexed.values())))
    reader, kept = RunReader(_OneRun(run), reveal=False), ExportedResponses()
    kept.ask("runs", {}, reader.runs)
    for step in _ends(list(run.evaluations())):
        keep_evaluation(kept, reader, name, step)
    shown: list[Place] = []
    if indexed:
        found = keep_conversations(kept, reader, name, STEPS, {}, indexed)
        shown = [place for place, _ in found]
        keep_groups(kept, reader, name, [row for _, row in found])
    for place in shown:
        keep_tokens(kept, reader, name, STEPS, {}, place)
    return kept, {
        indexed[stem, row]: _address("trajectory", run=name, file=stem, row=row) for stem, row in shown
    }


def _ends(steps: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*steps[:1], *steps[-1:]]))


def _address(page: str, **params: str | int) -> str:
    return f"#/{page}?{urlencode(params)}"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line of this module; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m rocstar.train.reading.view.report", description="Make report.html of a run."
    )
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument(
        "--svg", type=Path, help="write the reward and tool-error curves as this picture instead"
    )
    arguments = parser.parse_args(argv)
    try:
        if arguments.svg is None:
            path = write_report(arguments.run)
        else:
            path = arguments.svg
            path.write_text(picture_svg(rows_to_report(arguments.run)) + "\n", encoding="utf-8")
    except (ReportError, MetricsFileError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
