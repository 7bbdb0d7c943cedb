"""A run as one page: report.html, self-contained, from what the run wrote.

    python -m rocstar.train.record.report.report RUN                     writes RUN/report.html
    python -m rocstar.train.record.report.report RUN --svg PICTURE.svg   writes the rising curve as a picture

Reads only the run directory, so it can be made again at any time, also while the run goes on.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from rocstar.train.record.metrics import MetricsFileError, Row, read_metrics
from rocstar.train.record.report.budget import ledger_bars, time_bars, time_shares
from rocstar.train.record.report.curves import (
    curves_section,
    picture_svg,
)
from rocstar.train.record.report.foot import foot
from rocstar.train.record.report.headline import tiles_of
from rocstar.train.record.report.numbers import numbers_section
from rocstar.train.record.report.page import page, part
from rocstar.train.record.report.sample import sample
from rocstar.train.record.report.trajectories import trajectory_html
from rocstar.train.record.run_directory import REPORT, replace_text


class ReportError(ValueError):
    """A run directory that no report can be made of; the message says what is missing."""


def write_report(run_dir: Path) -> Path:
    """Write `run_dir/report.html` and return its path; the file appears whole or not at all. Raises as
    `report_page`."""
    path = run_dir / REPORT
    replace_text(path, report_page(run_dir))
    return path


def report_page(run_dir: Path) -> str:
    """The page of a run as it is now; it needs no other file.

    Raises:
        ReportError: the directory holds no metrics.jsonl, or one without rows.
        MetricsFileError: metrics.jsonl is damaged before its last line.
    """
    rows, name = _rows(run_dir), run_dir.resolve().name
    sections = [
        part("headline", name, tiles_of(rows)),
        curves_section(rows),
        _time(rows),
        _ledger(rows),
        _trajectories(run_dir),
        numbers_section(rows),
        _config(run_dir),
        foot(run_dir),
    ]
    text = page(f"rocstar: {name}", [section for section in sections if section])
    # A policy may write half a surrogate pair in its arguments; it is shown as its escape.
    return text.encode(errors="backslashreplace").decode()


def _rows(run_dir: Path) -> list[Row]:
    path = run_dir / "metrics.jsonl"
    if not path.is_file():
        raise ReportError(f"{path} does not exist; give the directory of a run, as `rocstar train` prints it")
    rows = read_metrics(path)
    if not rows:
        raise ReportError(f"{path} has no rows yet; wait for the first step")
    return rows


def _time(rows: Sequence[Row]) -> Markup:
    found = time_bars(rows)
    if found is None:
        return Markup("")
    bar = part("share_bar", time_shares(rows))
    return part("charts", "Where the time went", [found.markup()], before=bar)


def _ledger(rows: Sequence[Row]) -> Markup:
    found = ledger_bars(rows)
    return Markup("") if found is None else part("charts", "What the learner saw", [found.markup()])


def _trajectories(run_dir: Path) -> Markup:
    records, notes = sample(run_dir)
    if not records and not notes:
        return Markup("")
    cards = [trajectory_html(record, is_open=i == 0) for i, record in enumerate(records)]
    return part("trajectories", cards, notes)


def _config(run_dir: Path) -> Markup:
    path = run_dir / "config.toml"
    if not path.is_file():
        return Markup("")
    return part("recipe", path.read_text(encoding="utf-8", errors="replace"))


def main(argv: Sequence[str] | None = None) -> int:
    """The command line of this module; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m rocstar.train.record.report.report", description="Make report.html of a run."
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
            path.write_text(picture_svg(_rows(arguments.run)) + "\n", encoding="utf-8")
    except (ReportError, MetricsFileError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
