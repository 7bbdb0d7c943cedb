"""RUN/logs/console.log: the console output of a run, with times, over all its starts.

    2026-11-22T15:23:10Z started: rocstar train quickstart (process 4711)
    2026-11-22T15:24:31Z step 1/40  reward 0.12 ...

Each line is on the disk when `write` returns. A full disk or an unwritable folder loses these lines and
nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import traceback
import warnings
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.record.manifest import command_of_start, without_secrets
from rocstar.train.record.run_directory import CONSOLE_LOG


class ConsoleLog:
    """A context that appends to a run's log: written lines, warnings, and the reason that ends the run.

    Warnings of Python and of our loggers go to stderr as well, as they do without this.
    """

    def __init__(
        self, run_dir: Path, *, argv: Sequence[str] | None = None, wall_clock: Callable[[], float] = time.time
    ) -> None:
        """argv: the command, by default this process's."""
        self.path = run_dir / CONSOLE_LOG
        self._argv, self._wall_clock = sys.argv if argv is None else argv, wall_clock
        self._file: int | None = None
        self._is_torn = False
        self._show_warning: Callable[..., None] = warnings.showwarning
        self._handler = _Warnings(self.write)

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        command = command_of_start({"command": without_secrets(self._argv)})
        self.write(f"started: {command} (process {os.getpid()})")
        self._show_warning = warnings.showwarning
        warnings.showwarning = self._warn
        logging.getLogger("rocstar").addHandler(self._handler)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        logging.getLogger("rocstar").removeHandler(self._handler)
        warnings.showwarning = self._show_warning
        if isinstance(error, ConfigError | TrainingStopped):
            self.write(f"ended: {error}")
        elif isinstance(error, KeyboardInterrupt | CancelledError):
            self.write("ended: interrupted")
        elif error is not None:
            self.write("ended: " + "".join(traceback.format_exception(error)).rstrip())
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def write(self, text: str) -> None:
        """One line, or several of which the first has the time."""
        if self._file is None:
            return
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._wall_clock()))
        line = f"{at} {text}\n".encode(errors="replace")
        if self._is_torn:  # the disk was full in the middle of a line
            line = b"\n" + line
        with contextlib.suppress(OSError):
            written = os.write(self._file, line)
            self._is_torn = written < len(line)

    def _warn(
        self, message: Warning | str, category: type[Warning], filename: str, lineno: int, *a: Any, **k: Any
    ) -> Any:
        self.write(f"{category.__name__}: {message} ({filename}:{lineno})")
        return self._show_warning(message, category, filename, lineno, *a, **k)


class _Warnings(logging.Handler):
    """A handler for warnings of our loggers; it also calls Python's last resort, which a handler disables."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(f"{record.levelname.lower()}: {record.getMessage()}")
        if logging.lastResort is not None and not logging.getLogger().handlers:
            logging.lastResort.handle(record)
