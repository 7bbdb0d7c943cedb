"""Errors that are shown as a message instead of a traceback. Exit codes: train/record/ending.py."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

MISTAKE = 2
"""The exit code of a ConfigError."""


class ConfigError(Exception):
    """A mistake in a recipe, an option or a path: value, reason and fix in one message. Exit code 2."""


class ConfigErrors(ConfigError):
    """Several of them, each with its field and fix."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class TrainingStopped(Exception):
    """A run that cannot usefully go on: the reason and what to do, in one message. Exit code 1."""


def mark_mistake(code: int) -> int:
    """Return the exit code. If it is that of a mistake, create the file by which a launcher
    (cluster/on_node.py) knows that another start is of no use; torchrun would hide the code."""
    mark = os.environ.get("ROCSTAR_MISTAKE")
    if code == MISTAKE and mark:
        with contextlib.suppress(OSError):  # the launcher then starts this again
            Path(mark).touch()
    return code
