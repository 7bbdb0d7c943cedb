"""Show progress: live on a terminal, elsewhere as plain lines at intervals.

    ProgressBoard, WaitBoard ──read by──┬─ rich's thread, twice a second, on a terminal
                                             └─ one thread every LOOK_S ──line when due──> stderr, log

Both threads only read. The boards change meanwhile, so they take copies, and no lock that the work would have
to wait for.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol, Self, TextIO

from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from rocstar.engine.progress.progress import (
    LONG_WAITS,
    ProgressBoard,
    duration,
    next_report_s,
    slowest_line,
    work_line,
)
from rocstar.engine.waits import WaitBoard

REFRESHES_PER_S = 2.0
LOOK_S = 5.0
"""Seconds between two checks for a due line; the longest delay of a line."""


class Log(Protocol):
    """The stream of all output."""

    def write(self, text: str) -> None: ...


class StatusLine:
    """Shows the work of the block it is entered for.

    On a terminal all running work is drawn live and removed when it ends. Elsewhere, and in the log, work is
    reported at the age of one minute, five minutes, and then every fifteen: short work leaves no line.
    """

    keeps_display = False
    """True if the last drawing stays on the terminal."""

    def __init__(
        self, *, file: TextIO | None = None, log: Log | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`file` defaults to stderr."""
        self.progress = ProgressBoard(clock)
        self.waits = WaitBoard(clock)
        """The wait board of this block, except for parts with their own board."""
        self._clock, self._log = clock, log
        self._rich = RichConsole(file=file or sys.stderr, highlight=False)
        self._live: Live | None = None
        self._reported_s: dict[object, float] = {}
        self._reporting = threading.Lock()
        self._left = threading.Event()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.progress.installed())
            stack.enter_context(self.waits.installed())
            if self._rich.is_terminal:
                live = Live(
                    get_renderable=self.drawn,
                    console=self._rich,
                    refresh_per_second=REFRESHES_PER_S,
                    transient=not self.keeps_display,
                )
                stack.callback(setattr, self, "_live", None)
                self._live = stack.enter_context(live)
            reporter = threading.Thread(target=self._look, name="progress", daemon=True)
            reporter.start()
            stack.callback(reporter.join)
            stack.callback(self._left.set)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def note(self, text: str) -> None:
        """Say one line that stays."""
        if self._log is not None:
            self._log.write(text)
        self._rich.print(Text(text), soft_wrap=True)

    def plain(self, text: str) -> None:
        """Say a line that a live display shows anyway: it is for logs and pipes."""
        if self._log is not None:
            self._log.write(text)
        if self._live is None:
            self._rich.print(Text(text), soft_wrap=True)

    def drawn(self) -> RenderableType:
        """Return the drawing of the terminal; the console of a run draws more."""
        return self.progress_text()

    def progress_text(self) -> Text:
        """All work under way, one line each and one for its slowest trajectory."""
        return Text("\n".join(line for _, _, lines in self._under_way() for line in lines))

    def _under_way(self) -> Iterator[tuple[object, float, list[str]]]:
        """Yield each running work with its age and its lines."""
        now, waits = self._clock(), self.waits
        for work in self.progress.works:
            lines = [work_line(work, now)]
            slowest = work.attempts.slowest() if work.attempts is not None else None
            if slowest is not None:
                lines.append("  " + slowest_line(slowest, waits, now))
            yield work, now - work.since, lines
        for wait in waits.entries:
            if wait.kind in LONG_WAITS:
                age_s = waits.age_s(wait)
                yield wait, age_s, [f"{wait.who}: waiting for {wait.whom} ({duration(age_s)})"]

    def _look(self) -> None:
        while not self._left.wait(LOOK_S):
            self.report_due()

    def report_due(self) -> None:
        """Report work that reached a due age, once per age, in the plain form."""
        with self._reporting:
            reported: dict[object, float] = {}
            for what, age_s, lines in self._under_way():
                reported[what] = self._reported_s.get(what, 0.0)
                if age_s >= next_report_s(reported[what]):
                    reported[what] = age_s
                    self.plain("; ".join(line.strip() for line in lines))
            self._reported_s = reported
