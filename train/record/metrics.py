"""The only list of metric names, and the file they are written to.

A name that is not in `METRICS` cannot be logged (`check_names`), so a dashboard never has to guess what a
name means or whether two spellings are one. `{...}` in a name stands for a word without a slash: an
evaluation set, a status, a number.

`reward/mean` and all of `tool/*`, `seq_len/*`, `num_turns/*`, `is_truncated/*` and `finish/*` are taken over
every generated trajectory of the step, before RoC drops any (rewards: over those with one). With forks they are by
path weight (train/groups/rollout_metrics.py).
"""

import json
import math
import os
import re
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self, TextIO

from rocstar.engine.record.files import whole_file
from rocstar.train.recipe.errors import ConfigError

Phase = Literal["sft", "rl", "eval"]
Row = dict[str, Any]
"""One line of metrics.jsonl: `step`, `stage`, `phase`, `time_s`, then metrics (a float, or None for NaN)."""

ROW_KEYS = ("step", "stage", "phase", "time_s")


class UnknownMetricError(ValueError):
    """A metric that metrics.toml does not list: add it there, with its unit and its meaning."""


class MetricsFileError(ConfigError):
    """metrics.jsonl holds a line, not the last, that is no row: the file was edited or is another's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Unit and meaning of a metric name."""

    name: str
    unit: str
    meaning: str


_LISTED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
METRICS = tuple(Metric(name=name, unit=unit, meaning=meaning) for name, (unit, meaning) in _LISTED.items())
"""The metrics that metrics.toml lists."""

_BY_NAME = {metric.name: metric for metric in METRICS}
_PATTERNS = [
    (re.compile(re.sub(r"\\{\w+\\}", "[^/{}]+", re.escape(metric.name))), metric)
    for metric in METRICS
    if "{" in metric.name
]


@cache
def metric_of(name: str) -> Metric:
    """The entry of `METRICS` that lists `name`.

    Raises:
        UnknownMetricError: none does.
    """
    if name in _BY_NAME and "{" not in name:
        return _BY_NAME[name]
    for pattern, metric in _PATTERNS:
        if pattern.fullmatch(name):
            return metric
    raise UnknownMetricError(f"metric {name!r} is not listed; add it to train/record/metrics.toml")


_ZERO_IF_ABSENT = frozenset({
    "finish/{reason}", "tool/status/{status}", "tool/calls/{tool}", "tool/errors/{tool}", "failed/{kind}",
    "alarm/{name}",
})  # fmt: skip


def is_zero_if_absent(name: str) -> bool:
    """True if a step without this metric means 0: it counts an event that may not occur in a step."""
    return any(metric.name in _ZERO_IF_ABSENT and pattern.fullmatch(name) for pattern, metric in _PATTERNS)


def check_names(metrics: Iterable[str]) -> None:
    """Raise `UnknownMetricError` for a name that `METRICS` does not list."""
    for name in metrics:
        metric_of(name)


def read_metrics(path: Path) -> list[Row]:
    """Return the rows of a metrics.jsonl without a torn last line (a writer died, or is writing now).

    Raises:
        MetricsFileError: another line is no JSON object with the keys of a row.
        OSError: the file cannot be read.
    """
    return [row for row, _ in _parse(path, path.read_bytes())]


def _parse(path: Path, data: bytes) -> list[tuple[Row, int]]:
    """Return each row with the offset of its end."""
    rows: list[tuple[Row, int]] = []
    end = 0
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        end += len(line)
        if not line.endswith(b"\n"):
            break
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not all(key in row for key in ROW_KEYS):
            raise MetricsFileError(f"{path}, line {number}: not a row of metrics: {line[:80]!r}")
        rows.append((row, end))
    return rows


def rows_behind(path: Path, num_bytes: int) -> list[tuple[Row, int]]:
    """Return the rows after the first `num_bytes` of a metrics.jsonl, each with the offset of its end."""
    return [(row, end) for row, end in _parse(path, path.read_bytes()) if end > num_bytes]


def num_succeeded(old: Sequence[Row], row: Row) -> int:
    """Return the number of `old` rows, in the order of a run, that precede `row` or are its predecessor.

    Evaluation, difficulty filter and the measure after the cold start share step and phase, not the stage.
    """
    place = _place(row)
    same = [k for k, o in enumerate(old) if _place(o) == place and o["stage"] == row["stage"]]
    return same[-1] + 1 if same else sum(_place(o) < place for o in old)


def _place(row: Row) -> tuple[bool, int, bool]:
    """Return the order of a row in a run: the cold start, then each step before the evaluation after it."""
    return row["phase"] != "sft", row["step"], row["phase"] == "eval"


class MetricsWriter:
    """Appends one JSON object per step to metrics.jsonl.

    Invariant: after every `write` the file is a sequence of whole lines, one per written row, in order;
    behind them those of an earlier life whose successors are not written yet.
    A line torn by a crash is cut off when the file is opened again, and `time_s` goes on from the last row.
    """

    def __init__(
        self, path: Path, *, keep_bytes: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Open `path` for appending, mending its last line.

        Rows behind the first `keep_bytes` will be written again: each goes when its successor is written, in
        one rename, so that nothing is lost in between.

        Raises:
            MetricsFileError: the file holds something else.
            OSError: it cannot be opened.
        """
        self.path = path
        self._clock = clock
        data = path.read_bytes() if path.exists() else b""
        rows = _parse(path, data)
        whole = rows[-1][1] if rows else 0
        if whole < len(data):
            os.truncate(path, whole)
        own = whole if keep_bytes is None else min(keep_bytes, whole)
        self._own = data[:own]
        begins = [0, *(end for _, end in rows)]
        spans = zip(rows, begins, strict=False)
        self._old = [(row, data[begin:end]) for (row, end), begin in spans if end > own]
        self._file: TextIO = self.path.open("a", encoding="utf-8")
        self._started = self._clock()
        self._rows_s = max((float(row["time_s"]) for row, end in rows if end <= own), default=0.0)

    @property
    def num_bytes(self) -> int:
        """Size of this life's rows and of those it goes on from."""
        return len(self._own) if self._old else self.path.stat().st_size

    def write(self, metrics: Mapping[str, float], *, step: int, stage: str, phase: Phase) -> Row:
        """Append one row and flush it; return it as written. NaN and infinity become null and are counted.

        Raises:
            UnknownMetricError: a name is not listed; nothing is written.
            OSError: the line could not be written; reopening the file repairs it.
        """
        check_names(metrics)
        row: Row = {
            "step": step,
            "stage": stage,
            "phase": phase,
            "time_s": round(self._rows_s + self._clock() - self._started, 3),
        }
        row |= {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
        num_nonfinite = sum(not math.isfinite(value) for value in metrics.values())
        if num_nonfinite:
            row["metrics/nonfinite"] = float(num_nonfinite)
        line = json.dumps(row, allow_nan=False) + "\n"
        if self._old:
            self._replace(row, line.encode())
        else:
            self._file.write(line)
            self._file.flush()
        return row

    def _replace(self, row: Row, line: bytes) -> None:
        """Put a row where its predecessor of an earlier life stood."""
        left = self._old[num_succeeded([old for old, _ in self._old], row) :]
        own = self._own + line
        with whole_file(self.path) as file:
            file.write(own + b"".join(old for _, old in left))
        self._own, self._old = own, left
        self._file.close()
        self._file = self.path.open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
