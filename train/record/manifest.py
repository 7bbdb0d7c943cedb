"""manifest.json and logs/console.log: the program of a run, its command, machine, times, end and output.

    {"v": 1, "starts": [{"status": "interrupted", "started": ..., "rocstar": ..., "commit": ..., ...},
                        {"status": "complete", ...}]}

A resumed run adds an entry; an entry changes only at its end. The environment and passwords in addresses of
the command line are excluded.
"""

import asyncio
import contextlib
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
import time
import traceback
import warnings
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from rocstar.sandbox.extras import shell_command
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.recipe.load import to_toml
from rocstar.train.record.run_directory import CONSOLE_LOG, MANIFEST, is_held, write_json

CHECKOUT = Path(__file__).resolve().parents[2]
"""The repository's root, if this is a checkout."""
GIT_S = 10.0


def version_of(package: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_state(checkout: Path) -> dict[str, Any]:
    """Return the commit of a checkout, and True if its files differ from it; None if unknown."""
    unknown = {"commit": None, "dirty": None}
    # An installed package may be inside another project's repository.
    if not (checkout / ".git").exists():
        return unknown
    commit = _output(checkout, "rev-parse", "HEAD")
    if commit is None:
        return unknown
    changes = _output(checkout, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _output(checkout: Path, *arguments: str) -> str | None:
    """Return the output of git; None if git is missing, refuses or hangs."""
    command = ["git", "-C", str(checkout), *arguments]
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S, check=True, env=environment)
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout.strip()


def commit(checkout: Path = CHECKOUT) -> str | None:
    """Return the commit of the checkout, with `-modified` if a file differs; None if there is none."""
    state = git_state(checkout)
    if state["commit"] is None:
        return None
    return f"{state['commit'][:12]}{'-modified' if state['dirty'] else ''}"


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


VERSION = 1

RUNNING, COMPLETE, INTERRUPTED, FAILED = "running", "complete", "interrupted", "failed"
STOPPED, KILLED = "stopped", "killed"
"""Ended by a callback; ended without an entry of its end, which is never written."""


class ManifestError(ConfigError):
    """A manifest.json that cannot be read; the message says where and why."""


@contextlib.contextmanager
def recorded(directory: Path, recipe: Recipe, *, world_size: int) -> Iterator[dict[str, Any]]:
    """Add this start to the directory's manifest, and its end when the block is left.

    Yields the entry of this start. Additions, another status among them, are written at the end, and by
    `write_start` before.
    """
    starts = _earlier(directory)
    entry = {"status": RUNNING, "started": _now(), "ended": None, **describe(recipe, world_size=world_size)}
    starts.append(entry)
    _write(directory, starts)
    try:
        yield entry
    except BaseException as error:  # every end is recorded
        was_stopped = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
        entry |= {"status": INTERRUPTED if was_stopped else FAILED, "ended": _now()}
        with contextlib.suppress(OSError):  # the user must read the first error, not this one
            _write(directory, starts)
        raise
    entry |= {"status": COMPLETE if entry["status"] == RUNNING else entry["status"], "ended": _now()}
    _write(directory, starts)


def write_start(directory: Path, entry: dict[str, Any]) -> None:
    """Write additions to the entry of a running start: the process may be killed before its end."""
    _write(directory, [*read_manifest(directory)[:-1], entry])


def read_manifest(directory: Path) -> list[dict[str, Any]]:
    """Return every start of a run, oldest first; empty if it has no manifest.

    Raises:
        ManifestError: manifest.json is damaged or of another version.
    """
    path = directory / MANIFEST
    if not path.is_file():
        return []
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ManifestError(f"{path} is damaged: {error}") from None
    starts = content.get("starts") if isinstance(content, dict) and content.get("v") == VERSION else None
    if not isinstance(starts, list) or not all(isinstance(start, dict) for start in starts):
        raise ManifestError(f"{path} is no manifest of version {VERSION}")
    return starts


def read_status(directory: Path, starts: Sequence[Mapping[str, Any]] | None = None) -> str:
    """Return how the last start of a run ended, RUNNING while a process works on it, "" without a manifest.

    `starts`: the entries of the manifest, if the caller has them.

    Raises:
        ManifestError: manifest.json is damaged.
    """
    starts = read_manifest(directory) if starts is None else starts
    status = str(starts[-1].get("status", "")) if starts else ""
    with contextlib.suppress(OSError):  # another user's lock says nothing about the run
        if status == RUNNING and not is_held(directory):
            return KILLED
    return status


def _earlier(directory: Path) -> list[dict[str, Any]]:
    """Return the starts before this one. A start without an end was killed: this process has the lock."""
    try:
        starts = read_manifest(directory)
    except ManifestError:
        path = directory / MANIFEST
        path.replace(path.with_name(f"{path.name}.damaged"))
        return []
    for start in starts:
        if start.get("status") == RUNNING:
            start["status"] = INTERRUPTED
    return starts


def _write(directory: Path, starts: list[dict[str, Any]]) -> None:
    write_json(directory / MANIFEST, {"v": VERSION, "starts": starts})


def describe(recipe: Recipe, *, world_size: int) -> dict[str, Any]:
    """Return the facts of this process and its machine, as JSON."""
    import torch

    return {
        **versions(),
        **git_state(CHECKOUT),
        "recipe": recipe_hash(recipe),
        "command": without_secrets(sys.argv),
        "world_size": world_size,
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())],
    }


def command_of_start(start: Mapping[str, Any]) -> str:
    """Return the command of a start for a shell, as this environment would start it again."""
    words = [str(word) for word in start.get("command") or []]
    name = Path(words[0]).name if words else ""
    if name == "__main__.py":  # of torchrun, or `python -m rocstar.train`
        return shell_command("-m", "rocstar.train", *words[1:], program="python")
    return shell_command(*words[1:]) if name == "rocstar" else shlex.join(words)


def versions() -> dict[str, str | None]:
    """Return the versions of rocstar, Python, torch and transformers; None if not installed."""
    packages = {name: version_of(name) for name in ("rocstar", "torch", "transformers")}
    return {"python": platform.python_version(), **packages}


def recipe_hash(recipe: Recipe) -> str:
    """Return the SHA-256 of the resolved recipe as in config.toml."""
    return hashlib.sha256(to_toml(recipe).encode()).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


_SECRET = r"[\w.-]*(?:api[_-]?keys?|access[_-]?keys?|secrets?|passw(?:or)?ds?|credentials?|token)"
_OPTION = re.compile(rf"--?{_SECRET}", re.IGNORECASE)
_ASSIGNED = re.compile(rf"({_SECRET})([\"']?\s*[=:]\s*[\"']?)[^\"'&,;}}\s]+", re.IGNORECASE)
_IN_URL = re.compile(r"(://[^/@\s:]*):\S*@")


def without_secrets(words: Sequence[str]) -> list[str]:
    """Return a command line without passwords in addresses and values of options named like secrets."""
    shown: list[str] = []
    for k, word in enumerate(words):
        name, sign, _ = word.partition("=")
        if sign and _OPTION.fullmatch(name):
            shown.append(f"{name}=***")
        elif k and _OPTION.fullmatch(words[k - 1]) and not word.startswith("--"):
            shown.append("***")
        else:
            shown.append(_ASSIGNED.sub(r"\1\2***", _IN_URL.sub(r"\1:***@", word)))
    return shown
