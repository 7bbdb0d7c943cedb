"""The console output of a run: one live panel on a terminal, one plain line per step elsewhere."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rocstar.engine.progress.progress import duration
from rocstar.engine.progress.status import Log, StatusLine
from rocstar.train.record import console_text
from rocstar.train.record.callbacks import Callback
from rocstar.train.record.time_budget import PHASES

_STYLES = "blue bright_blue cyan yellow magenta green white red bright_black"
PHASE_STYLES = dict(zip(PHASES, _STYLES.split(), strict=True))
CURVES: tuple[tuple[str, str, str, float | None], ...] = (
    ("reward", "reward/mean", "{:.2f}", 1.0),
    ("tool errors in correct", "tool/error_share_in_correct", "{:.0%}", None),
    ("tokens", "seq_len/mean", "{:.0f}", None),
    ("truncated", "is_truncated/mean", "{:.0%}", 1.0),
)
"""Label, metric, format and fixed top of the scale (None: the largest value) of each curve of the panel."""

MAX_WIDTH = 80
CURVE_WIDTH = 32


class Console(StatusLine, Callback):
    """Live status of a run, of which it hears as callbacks do. Missing metrics are left out, never an error.

    Nothing here waits for anything.
    """

    keeps_display = True

    def __init__(
        self,
        total_steps: int,
        stage_names: Sequence[str],
        *,
        file: TextIO | None = None,
        log: Log | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`total_steps` counts the RL steps of all stages; `file` defaults to stderr."""
        super().__init__(file=file, log=log, clock=clock)
        self.total_steps = total_steps
        self._stage_names = tuple(stage_names)
        self._started = clock()
        self._history: dict[str, list[float]] = {}
        self._step_times_s: list[float] = []
        self._last: Mapping[str, Any] = {}
        self._step = 0
        self._sft: tuple[int, int, float] | None = None

    def on_cold_start(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Show an update of the cold start."""
        self._sft = (step, total, metrics["loss/sft"])
        if step == total or step % max(1, total // 10) == 0:
            self.plain(self._progress_text())

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        """Show an evaluation, one line per set."""
        for line in console_text.evaluation_lines(row):
            self.note(line)

    def on_note(self, text: str) -> None:
        """Show a line."""
        self.note(text)

    def on_step(self, row: Mapping[str, Any]) -> None:
        """Show a row of metrics.jsonl, or bare metrics."""
        self._sft = None
        step = console_text.number(row, "step")
        self._step = self._step + 1 if step is None else int(step)
        self._last = row
        for _, name, _, _ in CURVES:
            value = console_text.number(row, name)
            if value is not None:
                self._history.setdefault(name, []).append(value)
        seconds = console_text.number(row, "time/step")
        if seconds is not None:
            self._step_times_s.append(seconds)
        self.plain(self._plain_line())

    def _plain_line(self) -> str:
        """The last step as one line, for logs."""
        parts = [self._progress_text(), *console_text.metrics_texts(self._last)]
        seconds = console_text.number(self._last, "time/step")
        if seconds is not None:
            budget = " ".join(f"{name} {percent}%" for name, percent in console_text.time_percents(self._last).items())
            parts.append(console_text.step_time(seconds) + (f" ({budget})" if budget else ""))
        return "  ".join(parts)

    def drawn(self) -> Panel:
        """The live panel, at most 80 columns wide."""
        width = min(MAX_WIDTH, self._rich.width)
        curves = Table.grid(padding=(0, 2))
        curves.add_column(style="dim", no_wrap=True)
        curves.add_column(style="cyan", no_wrap=True)
        curves.add_column(no_wrap=True)
        for label, name, template, top in CURVES:
            if values := self._history.get(name):
                first, last = template.format(values[0]), template.format(values[-1])
                ends = f"{first} → {last}" if len(values) > 1 else last
                curves.add_row(label, console_text.sparkline(values, CURVE_WIDTH, top), ends)
        rows: list[RenderableType] = [self._progress_line()]
        if under_way := self.progress_text():
            rows.append(under_way)
        if curves.row_count:
            rows.append(curves)
        rows += self._budget_lines(width - 4)
        counts = {name: console_text.number(self._last, name) for name in self._last if name.startswith("ledger/")}
        ledger = [
            f"{count:.0f} {name.removeprefix('ledger/').replace('_', ' ')}" for name, count in counts.items() if count
        ]
        if ledger:
            rows.append(Text(", ".join(ledger), style="dim"))
        return Panel(Group(*rows), title="rocstar", title_align="left", border_style="dim", width=width)

    def _progress_text(self) -> str:
        if self._sft is not None:
            step, total, loss = self._sft
            return f"sft {step}/{total}  loss {loss:.3f}"
        text = f"step {self._step}/{self.total_steps}"
        stage = self._last.get("stage")
        if len(self._stage_names) > 1 and stage in self._stage_names:
            text += f"  {stage} ({self._stage_names.index(stage) + 1} of {len(self._stage_names)})"
        return text

    def _progress_line(self) -> Text:
        done, total = self._sft[:2] if self._sft is not None else (self._step, self.total_steps)
        line = Text(console_text.progress_bar(done, total, 20), style="green")
        text = f"  {self._progress_text()}  {duration(self._clock() - self._started)}"
        if self._sft is None and self._step_times_s and done < total:
            mean_s = sum(self._step_times_s) / len(self._step_times_s)
            text += f", about {duration(mean_s * (total - done))} left"
        return line.append(text, style="default")

    def _budget_lines(self, width: int) -> list[RenderableType]:
        percents = console_text.time_percents(self._last)
        seconds = console_text.number(self._last, "time/step")
        if not percents or seconds is None:
            return []
        bar = Text()
        for name, cells in console_text.apportion(percents, width - 12).items():
            bar.append("█" * cells, style=PHASE_STYLES[name])
        lines: list[RenderableType] = [bar.append(f" {console_text.step_time(seconds)}/step", style="default")]
        legend = Text()
        for name, percent in percents.items():
            item = f"{name.replace('_', ' ')} {percent}%  "
            if legend and len(legend) + len(item) + 2 > width:
                lines.append(legend)
                legend = Text()
            legend.append("■ ", style=PHASE_STYLES[name]).append(item)
        return [*lines, legend]
