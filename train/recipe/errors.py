"""Errors that are shown as a message instead of a traceback. Exit codes: train/record/ending.py."""

from __future__ import annotations

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


def tell_launcher(code: int) -> int:
    """The same exit code, of which a launcher (cluster/on_node.py) hears that it is of no use to start this
    again. torchrun would hide it."""
    told = os.environ.get("ROCSTAR_MISTAKE")
    if code == MISTAKE and told:
        with contextlib.suppress(OSError):  # it then starts this again, as often as it may
            Path(told).touch()
    return code
