"""The numbers of an evaluation as results.json has them, without what it has of each question."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from rocstar.train.recipe.errors import ConfigError

Bounds = tuple[float, float]
BOTH_TAILS, POWER = 1.959964, 0.841621
"""Normal quantiles of a test at 5% on both sides, and of power 0.8."""


class Denominator(msgspec.Struct, kw_only=True):
    """Scores under one way of counting failed attempts."""

    avg: float | None = None
    interval: Bounds | None = None
    pass_at: dict[str, float | None] = {}
    """By k, as text."""
    pass_power: dict[str, float | None] = {}
    maj_at: dict[str, float | None] = {}
    n_short: dict[str, int] = {}


class Overlap(msgspec.Struct, kw_only=True):
    """What of a set is among the tasks that were learned from."""

    rule: str = ""
    num_contaminated: int = 0
    left_out_of_training: bool = False
    avg_clean: float | None = None
    interval_clean: Bounds | None = None


class SetNumbers(msgspec.Struct, kw_only=True):
    """The numbers of a set."""

    k: int
    num_questions: int = 0
    avg: float | None = None
    """Failed attempts left out."""
    interval: Bounds | None = None
    best: float | None = msgspec.field(default=None, name="pass")
    """pass@k."""
    failed_left_out: Denominator | None = None
    failed_as_wrong: Denominator | None = None
    failed: int = 0
    failures: dict[str, int] = {}
    n_short: int | None = None
    truncated: int = 0
    unextracted: int = 0
    tokens_mean: float | None = None
    turns_mean: float | None = None
    calls_mean: float | None = None
    tool_error_share: float | None = None
    reward_mean: float | None = None
    by_source: dict[str, float] = {}
    measures: dict[str, float] = {}
    categories: dict[str, float] = {}
    overall: dict[str, float] = {}
    contamination: Overlap | None = None
    hidden: bool = False

    @property
    def left_out(self) -> Denominator:
        """Scores of the attempts that did not fail."""
        if self.failed_left_out is not None:
            return self.failed_left_out
        at_k: dict[str, float | None] = {} if self.best is None else {str(self.k): self.best}
        return Denominator(avg=self.avg, interval=self.interval, pass_at=at_k)

    @property
    def as_wrong(self) -> Denominator:
        """Scores where a failed attempt is a wrong one."""
        return self.failed_as_wrong or self.left_out

    @property
    def num_short(self) -> int | None:
        """Questions with fewer than k scored attempts."""
        return self.left_out.n_short.get(str(self.k), self.n_short)


class Results(msgspec.Struct, kw_only=True):
    """results.json."""

    sets: dict[str, SetNumbers]
    seed: int | None = None
    step: int | None = None


def read_results(path: Path) -> Results:
    """The numbers of a finished evaluation. ConfigError where there are none, or they are damaged."""
    if not path.is_file():
        raise ConfigError(
            f"{str(path.parent)!r} holds no finished evaluation: there is no {path.name}; give the folder of "
            "`rocstar eval --out`, or evaluations/step_N of a run"
        )
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{str(path)!r} is damaged: {error}; `rocstar eval --rescore` makes it again"
        ) from None


def detectable(interval: Bounds | None) -> float | None:
    """The smallest difference to another evaluation of the same size and spread that a two-sided test at 5%
    finds with power 0.8, if the two are not compared question by question: (z0.975 + z0.8) * sqrt(2) * se,
    with the standard error se from the width of the 95% interval."""
    if interval is None:
        return None
    error = (interval[1] - interval[0]) / (2 * BOTH_TAILS)
    return (BOTH_TAILS + POWER) * math.sqrt(2) * error
