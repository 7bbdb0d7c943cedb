"""The pass rate of each task, from a model's records, and the rules that drop tasks by it.

    solved      k attempts or more, all correct: the report's rule with k = 8. A task of true rate 0.9 is lost
                with probability 0.43, one of 0.95 with 0.66
    too_easy    the rate is above a limit with a stated probability: P(rate > limit | attempts)
    unsolved    fewer correct attempts than asked for: no model found the label, which may be wrong

The posterior is that of a uniform prior, Beta(correct + 1, wrong + 1); so are the intervals. Attempts that
failed by a fault of ours count for nothing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from rocstar.engine.record.files import record_files
from rocstar.sandbox.extras import missing_extra_message
from rocstar.train.data.build_config import DifficultyConfig
from rocstar.train.recipe.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PassRate:
    """The number of scored attempts at a task, and of correct ones."""

    correct: int
    attempts: int

    def as_json(self) -> dict[str, Any]:
        """Return the counts and the interval of the rate."""
        interval = [round(bound, 4) for bound in rate_interval(self.correct, self.attempts)]
        return {"correct": self.correct, "attempts": self.attempts, "interval": interval}

    def rejection_reason(self, rule: DifficultyConfig) -> str | None:
        """Return the reason to drop the task, or None to keep it."""
        if self.correct < rule.min_correct:
            return "unsolved"
        if rule.solved and self.attempts >= rule.solved and self.correct == self.attempts:
            return "solved"
        if probability_above(rule.easy_above, self.correct, self.attempts) > rule.certainty:
            return "too_easy"
        return None


def probability_above(limit: float, correct: int, attempts: int) -> float:
    """Return P(rate > limit) after these attempts: a sum over a binomial, exact but for rounding."""
    if limit >= 1:
        return 0.0
    n = attempts + 1
    return math.fsum(math.comb(n, j) * limit**j * (1 - limit) ** (n - j) for j in range(correct + 1))


@lru_cache(maxsize=4096)
def rate_interval(correct: int, attempts: int) -> tuple[float, float]:
    """Return the central 95% of the posterior."""
    tail = (1 - 0.95) / 2
    return _quantile(1 - tail, correct, attempts), _quantile(tail, correct, attempts)


def _quantile(above: float, correct: int, attempts: int) -> float:
    """Return the rate above which the posterior has a mass of `above`, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if probability_above(middle, correct, attempts) > above:
            low = middle
        else:
            high = middle
    return (low + high) / 2


class _Outcome(msgspec.Struct):
    is_correct: bool | None = None
    reward: float | None = None


class _Task(msgspec.Struct):
    id: str


class _Frame(msgspec.Struct):
    """The fields read from a frame besides its index; the rest is skipped."""

    task: _Task


class _Line(_Frame):
    """The fields read from a record; the rest of a line is skipped."""

    v: int
    outcome: _Outcome


def read_attempts(source: Path) -> Iterator[tuple[str, bool]]:
    """Yield (task id, True if correct) of every scored attempt in a file or a folder of records.

    Raises:
        ConfigError: there are no records, or they cannot be read.
    """
    inner = source / "trajectories"
    folder = inner if inner.is_dir() else source
    paths = list(record_files(folder).values()) if folder.is_dir() else [source]
    if not paths:
        raise ConfigError(f"difficulty.rollouts: {str(source)!r} has no records of a finished step")
    for path in paths:
        yield from _of_columns(path) if path.suffix == ".columns" else _of_lines(path)


def _of_lines(path: Path) -> Iterator[tuple[str, bool]]:
    decoder, number = msgspec.json.Decoder(_Line), 0
    try:
        with path.open("rb") as file:
            for line in file:
                number += 1
                record = decoder.decode(line)
                if record.outcome.reward is not None:
                    correct = record.outcome.is_correct
                    yield record.task.id, record.outcome.reward == 1 if correct is None else correct
    except (OSError, msgspec.MsgspecError) as error:
        where = f"{path}, line {number}"
        raise ConfigError(f"difficulty.rollouts: {where}, is no trajectory record: {error}") from None


def _of_columns(path: Path) -> Iterator[tuple[str, bool]]:
    if missing := missing_extra_message("reading trajectories in columns", "sim"):
        raise ConfigError(missing)
    from rocstar.engine.record.json_record import RecordError
    from rocstar.engine.record.step_file import NAME_BYTES, StepFile

    try:
        step_file = StepFile(path)
        names = dict[int, str]()
        for number, row in enumerate(step_file.rows):
            if math.isnan(row["reward"]):  # it was not scored
                continue
            task = int(row["task"])
            if task not in names:
                name = bytes(row["name"])
                if len(name) < NAME_BYTES:
                    names[task] = name.decode()
                else:  # the index has only the first bytes of the id
                    names[task] = msgspec.json.decode(step_file.metadata(number), type=_Frame).task.id
            yield names[task], bool(row["is_correct"])
    except RecordError as error:
        raise ConfigError(f"difficulty.rollouts: {error}") from None
