"""The numbers of results.json as tables: scores, sizes of attempts, further columns and overlap."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rocstar.engine.charts.drawing import format_value
from rocstar.sandbox.extras import shell_command
from rocstar.train.recipe.errors import ConfigError

NONE = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a row per set, which begins with its name."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def tables(sets: Mapping[str, SetNumbers]) -> list[Table]:
    """Return the tables that have rows."""
    return [table for table in (_scores(sets), _attempts(sets), _further(sets), _overlap(sets)) if table.rows]


def _scores(sets: Mapping[str, SetNumbers]) -> Table:
    rows = []
    for name, one in sets.items():
        wrong, left_out, k = one.failed_as_wrong, one.failed_left_out, str(one.k)
        rows.append(
            [
                name,
                f"{one.num_questions:,} × {k}",
                _with_interval(wrong.avg, wrong.interval),
                _with_interval(left_out.avg, left_out.interval),
                score(_first(wrong.pass_at, left_out.pass_at, k)),
                score(_first(wrong.maj_at, left_out.maj_at, k)),
                score(_first(wrong.pass_power, left_out.pass_power, k)),
                score(detectable(wrong.interval)),
            ]
        )
    head = ["set", "questions × k", "avg@k", "failed left out", "pass@k", "maj@k", "pass^k", "detectable"]
    note = (
        "avg@k: share of correct attempts, with equal weights of questions; a failed attempt counts as "
        "wrong, and in the next column not at all. pass@k: at least one of k attempts is correct; "
        "maj@k: the most frequent answer is; pass^k: all k are. detectable: the smallest difference to "
        "another evaluation of this size that a test at the 5% level finds with power 0.8 when the two are "
        "compared as a whole; a comparison by question (rocstar compare) finds smaller ones."
    )
    return Table("Scores", head, rows, note)


def _first(first: Mapping[str, float | None], other: Mapping[str, float | None], k: str) -> float | None:
    return first.get(k, other.get(k))


def _attempts(sets: Mapping[str, SetNumbers]) -> Table:
    rows = []
    for name, one in sets.items():
        kinds = ", ".join(f"{number} {kind}" for kind, number in one.failures.items())
        short = one.failed_left_out.n_short.get(str(one.k))
        rows.append(
            [
                name,
                f"{one.num_questions * one.k:,}",
                f"{one.failed:,}" + (f" ({kinds})" if kinds else ""),
                NONE if short is None else f"{short:,}",
                f"{one.truncated:,}",
                f"{one.unextracted:,}",
                number(one.tokens_mean),
                number(one.turns_mean),
                number(one.calls_mean),
                NONE if one.tool_error_share is None else format_value(one.tool_error_share, "share"),
            ]
        )
    head = ["set", "attempts", "failed", "short", "truncated", "unextracted"]
    head += ["tokens", "turns", "tool calls", "tool errors"]
    note = (
        "failed: a system failure, without a verdict. short: questions with fewer than k scored "
        "attempts. truncated: ended by a limit before an answer. unextracted: ended without a boxed answer. "
        "tokens, turns and tool calls: mean of the scored attempts."
    )
    return Table("Attempts", head, rows, note)


def _further(sets: Mapping[str, SetNumbers]) -> Table:
    rows = []
    for name, one in sets.items():
        kinds = ("overall", one.overall), ("measure", one.measures), ("category", one.categories)
        sources = one.by_source if len(one.by_source) > 1 else {}
        for kind, columns in (*kinds, ("source", sources)):
            rows += [[name, f"{kind}: {column}", score(value)] for column, value in columns.items()]
    return Table("Further columns", ["set", "column", "mean"], rows)


def _overlap(sets: Mapping[str, SetNumbers]) -> Table:
    rows = []
    for name, one in sets.items():
        if (found := one.contamination) is not None:
            kept = "excluded from the stages" if found.left_out_of_training else ""
            rows.append(
                [
                    name,
                    f"{found.num_contaminated:,} of {one.num_questions:,}",
                    _with_interval(found.avg_clean, found.interval_clean),
                    f"{found.rule}{'; ' if found.rule and kept else ''}{kept}",
                ]
            )
    note = "The rule does not find every overlap: no overlap does not prove that a set is clean."
    return Table("Questions among the training tasks", ["set", "found", "avg@k on the others", "rule"], rows, note)


def _with_interval(value: float | None, interval: Bounds | None) -> str:
    """Format a score like `0.433 [0.36, 0.51]`."""
    return score(value) + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval and value is not None else "")


def score(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def number(value: float | None) -> str:
    return NONE if value is None else format_value(value, "")


Bounds = tuple[float, float]
BOTH_TAILS, POWER = 1.959964, 0.841621
"""Normal quantiles of a two-sided test at 5%, and of power 0.8."""


class Denominator(msgspec.Struct, kw_only=True, frozen=True):
    """Scores under one treatment of failed attempts."""

    avg: float | None = None
    interval: Bounds | None = None
    pass_at: dict[str, float | None] = {}
    """By k, as text."""
    pass_power: dict[str, float | None] = {}
    maj_at: dict[str, float | None] = {}
    n_short: dict[str, int] = {}


class Overlap(msgspec.Struct, kw_only=True):
    """The overlap of a set with the training tasks."""

    rule: str = ""
    num_contaminated: int = 0
    left_out_of_training: bool = False
    avg_clean: float | None = None
    interval_clean: Bounds | None = None


class QuestionNumbers(msgspec.Struct, kw_only=True):
    """The attempts at a question, in the order of the siblings."""

    attempts: list[bool | float | None]
    """True, False or a share; None for a failed one."""
    truncated: list[bool] = []
    answers: list[str | None] = []
    source: str = ""


class SetNumbers(msgspec.Struct, kw_only=True):
    """The numbers of a set in results.json."""

    k: int
    num_questions: int = 0
    failed_left_out: Denominator = Denominator()
    failed_as_wrong: Denominator = Denominator()
    failed: int = 0
    failures: dict[str, int] = {}
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
    questions: dict[str, QuestionNumbers] = {}


class Results(msgspec.Struct, kw_only=True):
    """The content of results.json."""

    sets: dict[str, SetNumbers]
    seed: int | None = None
    step: int | None = None


def read_results(path: Path) -> Results:
    """Read the numbers of a finished evaluation. ConfigError if there are none, or they are damaged."""
    if not path.is_file():
        raise ConfigError(
            f"{str(path.parent)!r} holds no finished evaluation: there is no {path.name}. Pass the folder of "
            "`rocstar eval --out`, or evaluations/step_N of a run"
        )
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except msgspec.DecodeError as error:
        again = shell_command("eval", "--rescore", path.parent)
        raise ConfigError(f"{str(path)!r} is damaged: {error}. `{again}` writes it again.") from None


def detectable(interval: Bounds | None) -> float | None:
    """Return the smallest difference to another evaluation of the same size and spread that a two-sided
    test at 5% finds with power 0.8, without comparing question by question: (z0.975 + z0.8) * sqrt(2) *
    se, with the standard error se from the width of the 95% interval."""
    if interval is None:
        return None
    error = (interval[1] - interval[0]) / (2 * BOTH_TAILS)
    return (BOTH_TAILS + POWER) * math.sqrt(2) * error
