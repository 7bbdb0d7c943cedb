"""The sections of a run's report, as markup, from the run directory.

Reads only the run directory, so a report can be made again at any time, also during the run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from rocstar.train.record.metrics import Row, read_metrics
from rocstar.train.record.report.budget import ledger_bars, status_bars, time_bars, time_shares
from rocstar.train.record.report.curves import curves_section
from rocstar.train.record.report.foot import foot
from rocstar.train.record.report.headline import tiles_of
from rocstar.train.record.report.numbers import numbers_section
from rocstar.train.record.report.page import part
from rocstar.train.record.report.sample import RecordAt, ReportSample
from rocstar.train.record.report.trajectories import trajectory_html


class ReportError(ValueError):
    """A run directory without the files of a report; the message names them."""


def rows_to_report(run_dir: Path) -> list[Row]:
    """The rows of metrics.jsonl, of which there is at least one.

    Raises:
        ReportError: the directory holds no metrics.jsonl, or one without rows.
        MetricsFileError: metrics.jsonl is damaged before its last line.
    """
    path = run_dir / "metrics.jsonl"
    if not path.is_file():
        raise ReportError(f"{path} does not exist; give the directory of a run, as `rocstar train` prints it")
    rows = read_metrics(path)
    if not rows:
        raise ReportError(f"{path} has no rows yet; wait for the first step")
    return rows


def report_sections(
    run_dir: Path, rows: Sequence[Row], sampled: ReportSample, addresses: Mapping[RecordAt, str]
) -> list[Markup]:
    """Return the sections of a report, from headline to foot.

    Args:
        run_dir: the run.
        rows: rows of metrics.jsonl.
        sampled: the trajectories to read.
        addresses: links to the trajectories that the viewer shows in full.
    """
    sections = [
        part("headline", run_dir.resolve().name, tiles_of(rows)),
        curves_section(rows),
        _time(rows),
        _ledger(rows),
        _statuses(rows),
        _trajectories(sampled, addresses),
        numbers_section(rows),
        _config(run_dir),
        foot(run_dir),
    ]
    return [section for section in sections if section]


def _time(rows: Sequence[Row]) -> Markup:
    found = time_bars(rows)
    if found is None:
        return Markup("")
    bar = part("share_bar", time_shares(rows))
    return part("charts", "Where the time went", [found.markup()], before=bar)


def _ledger(rows: Sequence[Row]) -> Markup:
    found = ledger_bars(rows)
    return Markup("") if found is None else part("charts", "Trajectories of the learner", [found.markup()])


def _statuses(rows: Sequence[Row]) -> Markup:
    found = status_bars(rows)
    return Markup("") if found is None else part("charts", "How tool calls ended", [found.markup()])


def _trajectories(sampled: ReportSample, addresses: Mapping[RecordAt, str]) -> Markup:
    if not sampled.shown and not sampled.notes:
        return Markup("")
    cards = [
        trajectory_html(record, is_open=i == 0, address=addresses.get(place, ""))
        for i, (place, record) in enumerate(sampled.shown)
    ]
    return part("trajectories", cards, sampled.notes)


def _config(run_dir: Path) -> Markup:
    path = run_dir / "config.toml"
    if not path.is_file():
        return Markup("")
    return part("recipe", path.read_text(encoding="utf-8", errors="replace"))
