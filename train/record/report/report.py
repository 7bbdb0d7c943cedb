"""A run as one page: report.html, self-contained, from what the run wrote.

    python -m rocstar.train.record.report.report RUN                     writes RUN/report.html
    python -m rocstar.train.record.report.report RUN --svg PICTURE.svg   writes the rising curve as a picture

Reads only the run directory, so it can be made again at any time, also while the run goes on.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from rocstar.train.record.console_text import duration, number
from rocstar.train.record.metrics import MetricsFileError, Row, metric_of, read_metrics
from rocstar.train.record.report.budget import ledger_bars, time_bars, time_shares
from rocstar.train.record.report.curves import (
    PlottedEvaluation,
    curves_section,
    evaluations,
    main_set_of,
    picture_svg,
    rows_of,
)
from rocstar.train.record.report.foot import foot
from rocstar.train.record.report.numbers import numbers_section
from rocstar.train.record.report.page import page, part
from rocstar.train.record.report.sample import sample
from rocstar.train.record.report.scales import format_value
from rocstar.train.record.report.trajectories import trajectory_html


@dataclass(frozen=True, slots=True)
class Tile:
    """One number of the headline."""

    name: str
    value: str
    detail: str = ""
    is_hero: bool = False


class ReportError(ValueError):
    """A run directory that no report can be made of; the message says what is missing."""


def write_report(run_dir: Path) -> Path:
    """Write `run_dir/report.html` and return its path; the file appears whole or not at all.

    Raises:
        ReportError: the directory holds no metrics.jsonl, or one without rows.
        MetricsFileError: metrics.jsonl is damaged before its last line.
    """
    rows = _rows(run_dir)
    title = f"rocstar: {run_dir.resolve().name}"
    sections = [
        _headline(run_dir, rows),
        curves_section(rows),
        _time(rows),
        _ledger(rows),
        _trajectories(run_dir),
        numbers_section(rows),
        _config(run_dir),
        foot(run_dir),
    ]
    path, partial = run_dir / "report.html", run_dir / "report.html.partial"
    text = page(title, [section for section in sections if section])
    # A policy may write half a surrogate pair in its arguments; it is shown as its escape.
    partial.write_text(text, encoding="utf-8", errors="backslashreplace")
    partial.replace(path)
    return path


def _rows(run_dir: Path) -> list[Row]:
    path = run_dir / "metrics.jsonl"
    if not path.is_file():
        raise ReportError(f"{path} does not exist; give the directory of a run, as `rocstar train` prints it")
    rows = read_metrics(path)
    if not rows:
        raise ReportError(f"{path} has no rows yet; wait for the first step")
    return rows


def _headline(run_dir: Path, rows: Sequence[Row]) -> Markup:
    steps, found = rows_of(rows, "rl"), evaluations(rows)
    main_set = main_set_of(found)
    tiles = [_evaluation_tile(found, set_name) for set_name in _sets(found, main_set)]
    for name, key in (("reward", "reward/mean"), ("tool errors in correct", "tool/error_share_in_correct")):
        first, last = _quarters(steps, key)
        if first is not None and last is not None:
            unit = metric_of(key).unit
            value = f"{format_value(first, unit)} → {format_value(last, unit)}"
            tiles.append(Tile(name, value, "mean of the first and of the last quarter of the steps"))
    generated = [count for row in steps if (count := number(row, "ledger/generated")) is not None]
    if generated:
        tokens = math.fsum(number(row, "tokens/generated") or 0.0 for row in steps)
        detail = f"{tokens:,.0f} tokens written" if tokens else ""
        tiles.append(Tile("trajectories generated", f"{math.fsum(generated):,.0f}", detail))
    wall_s = max(float(row["time_s"]) for row in rows)
    tiles.append(Tile("wall time", duration(wall_s), f"{len(steps)} RL steps, {_stages(rows)}"))
    return part("headline", run_dir.resolve().name, tiles)


def _stages(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(str(row["stage"]) for row in rows if row["phase"] == "rl"))
    return f"stage {names[0]}" if len(names) == 1 else f"{len(names)} stages"


def _sets(found: Sequence[PlottedEvaluation], main_set: str | None) -> list[str]:
    names = list(dict.fromkeys(e.set_name for e in found))
    return sorted(names, key=lambda name: name != main_set)


def _evaluation_tile(found: Sequence[PlottedEvaluation], set_name: str) -> Tile:
    """Before and after, each with its interval."""
    mine = [e for e in found if e.set_name == set_name]
    first, last = mine[0], mine[-1]
    tasks = f" on {last.num_tasks} tasks" if last.num_tasks else ""
    name = f"{set_name} avg@{last.k}{tasks}"
    if first is last:
        return Tile(name, f"{last.value:.2f}", f"{_interval(last)} at step {last.step}", is_hero=True)
    detail = f"{_interval(first)} → {_interval(last)}, 95% interval" if last.low is not None else ""
    return Tile(name, f"{first.value:.2f} → {last.value:.2f}", detail, is_hero=True)


def _interval(e: PlottedEvaluation) -> str:
    return f"[{e.low:.2f}, {e.high:.2f}]" if e.low is not None and e.high is not None else ""


def _quarters(steps: Sequence[Row], key: str) -> tuple[float | None, float | None]:
    """Mean over the first and over the last quarter of the steps that have the metric."""
    values = [value for row in steps if (value := number(row, key)) is not None]
    size = math.ceil(len(values) / 4)
    if len(values) < 2:
        return None, None
    return math.fsum(values[:size]) / size, math.fsum(values[-size:]) / size


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
