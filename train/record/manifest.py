"""manifest.json: the program of a run, its command, machine, times and end.

    {"v": 1, "starts": [{"status": "interrupted", "started": ..., "rocstar": ..., "commit": ..., ...},
                        {"status": "complete", ...}]}

A resumed run adds an entry; an entry changes only at its end. The environment and passwords in addresses of
the command line are excluded.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import platform
import re
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rocstar.sandbox.extras import shell_command
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.toml_file import to_toml
from rocstar.train.record.run_directory import MANIFEST, is_held, write_json
from rocstar.train.record.version import CHECKOUT, git_state, version_of

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
