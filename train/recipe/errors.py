"""What a person is told instead of a traceback. Which exit code each means: train/record/ending.py."""

from __future__ import annotations

from collections.abc import Sequence


class ConfigError(Exception):
    """A mistake in a recipe, an option or a path: value, reason and fix in one message. Exit code 2."""


class ConfigErrors(ConfigError):
    """Several of them, each with its field and fix."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class TrainingStopped(Exception):
    """A run that cannot usefully go on: the reason and what to do, in one message. Exit code 1."""
