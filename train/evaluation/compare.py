"""`rocstar compare A B`: compare two evaluations question by question.

    A, B ──stored_evaluations──> attempts by set and question ──same questions──> paired differences ──> table

The difference is B minus A, with questions as the sample. Failed attempts are excluded; if there are any, a
second difference counts them as wrong.
"""

import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np

from rocstar.train.evaluation.statistics.intervals import exact_mean
from rocstar.train.evaluation.statistics.paired import PairedDifference, holm, paired_difference
from rocstar.train.evaluation.stored_evaluations import (
    Attempted,
    StoredEvaluation,
    find_evaluations,
    match_evaluations,
)
from rocstar.train.recipe.errors import ConfigError

NAMED: Final = 5
"""The number of questions that an error message names."""
SEED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SetComparison:
    """The comparison of one set."""

    name: str
    a: float
    """The mean over questions of the share of correct attempts."""
    b: float
    paired: PairedDifference
    p_holm: float
    """p, adjusted for the number of sets."""
    failed: tuple[int, int]
    """Failed attempts in A and in B; `a`, `b` and `paired` exclude them."""
    unscored: int
    """Questions without a scored attempt in A or in B, which are excluded too."""
    as_wrong: PairedDifference
    """The difference over all questions with Failed attempts counted as wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """B minus A by set, and over all sets with equal weights."""

    a: StoredEvaluation
    b: StoredEvaluation
    sets: Sequence[SetComparison]
    overall: PairedDifference

    def as_json(self) -> dict[str, Any]:
        """Return plain values, with difference, interval and p over all sets at the top level."""
        return {
            **asdict(self.overall),
            **{k: {"path": str(one.path), "step": one.step} for k, one in (("a", self.a), ("b", self.b))},
            "sets": [
                {
                    "set": each.name,
                    "mean_a": each.a,
                    "mean_b": each.b,
                    **asdict(each.paired),
                    "p_holm": each.p_holm,
                    "failed_a": each.failed[0],
                    "failed_b": each.failed[1],
                    "unscored": each.unscored,
                    "failed_as_wrong": asdict(each.as_wrong),
                }
                for each in self.sets
            ],
        }


def compare_paths(a: Path, b: Path, *, step: int | None = None, only: Sequence[str] = ()) -> Comparison:
    """Compare the evaluations at two paths.

    Args:
        step: the step of two runs, or None for the last common one.
        only: the sets, or () for all.

    Raises:
        ConfigError: a path holds no evaluation, or the questions differ.
    """
    return compare(*match_evaluations(find_evaluations(a), find_evaluations(b), step), only=only)


def compare(a: StoredEvaluation, b: StoredEvaluation, *, only: Sequence[str] = ()) -> Comparison:
    """Compare two evaluations. ConfigError unless both have the same sets, or those of `only`, and
    questions."""
    pairs = _same_sets(a, b, only)
    for name, (x, y) in pairs.items():
        if x.keys() != y.keys():
            raise ConfigError(
                f"A and B have different questions of {name!r}: {_named(x.keys() - y.keys())} only in A, "
                f"{_named(y.keys() - x.keys())} only in B, {len(x.keys() & y.keys())} in both. The "
                "difference would depend on the questions; evaluate both on the same tasks"
            )
    rng = np.random.default_rng(SEED)
    scored = {name: _scores(x, y, failed_as_wrong=False) for name, (x, y) in pairs.items()}
    paired = {name: paired_difference([_differences(found)], rng) for name, found in scored.items()}
    adjusted = holm({name: found.p for name, found in paired.items()})
    sets = [
        SetComparison(
            name=name,
            a=fmean([of_a for of_a, _ in scored[name]]),
            b=fmean([of_b for _, of_b in scored[name]]),
            paired=paired[name],
            p_holm=adjusted[name],
            failed=(_num_failed(x), _num_failed(y)),
            unscored=len(x) - paired[name].num_questions,
            as_wrong=paired_difference([_differences(_scores(x, y, failed_as_wrong=True))], rng),
        )
        for name, (x, y) in pairs.items()
    ]
    overall = paired_difference([_differences(found) for found in scored.values()], rng)
    return Comparison(a=a, b=b, sets=sets, overall=overall)


def _same_sets(
    a: StoredEvaluation, b: StoredEvaluation, only: Sequence[str]
) -> dict[str, tuple[Attempted, Attempted]]:
    """Return the sets to compare. Two evaluations with one set each are a pair, whatever the names."""
    if not only and len(a.sets) == len(b.sets) == 1:
        [(name, of_a)], [of_b] = a.sets.items(), b.sets.values()
        return {name: (of_a, of_b)}
    for name in only:
        for stored in (a, b):
            if name not in stored.sets:
                known = ", ".join(sorted(stored.sets))
                raise ConfigError(f"--set {name!r} is not in {str(stored.path)!r}; its sets are {known}")
    if not only and a.sets.keys() != b.sets.keys():
        common = sorted(a.sets.keys() & b.sets.keys())
        fix = f"choose with --set among {', '.join(common)}" if common else "they have none in common"
        raise ConfigError(
            f"A and B have different sets: {_named(a.sets.keys() - b.sets.keys())} only in A, "
            f"{_named(b.sets.keys() - a.sets.keys())} only in B; {fix}"
        )
    return {name: (a.sets[name], b.sets[name]) for name in sorted(set(only) or a.sets)}


def _named(names: set[str]) -> str:
    """Return the number of names and the first of them."""
    if not names:
        return "none"
    more = ", ..." if len(names) > NAMED else ""
    return f"{len(names)} ({', '.join(map(repr, sorted(names)[:NAMED]))}{more})"


def _scores(a: Attempted, b: Attempted, *, failed_as_wrong: bool) -> list[tuple[float, float]]:
    """Return the scores in A and in B by question, without those that lack a score in one of them."""
    found = []
    for question in a:
        of_a, of_b = (
            exact_mean([score or 0.0 for score in side[question] if failed_as_wrong or score is not None])
            for side in (a, b)
        )
        if of_a is not None and of_b is not None:
            found.append((of_a, of_b))
    if not found:
        raise ConfigError("no question has a scored attempt in both A and B; nothing can be compared")
    return found


def _differences(scores: Sequence[tuple[float, float]]) -> list[float]:
    return [of_b - of_a for of_a, of_b in scores]


def _num_failed(questions: Attempted) -> int:
    return sum(score is None for attempts in questions.values() for score in attempts)


def format_comparison(found: Comparison) -> str:
    """Return a table with the detectable difference beside each difference, and notes on Failed attempts."""
    from rich.console import Console
    from rich.table import Table

    table = Table("set", box=None, pad_edge=False)
    for title in ("questions", "A", "B", "B - A", "95% interval", "p", "p (Holm)", "detectable"):
        table.add_column(title, justify="right", no_wrap=True)
    for each in found.sets:
        cells = _cells(each.paired)
        table.add_row(each.name, cells[0], _points(each.a), _points(each.b), *cells[1:4], _p(each.p_holm), cells[4])
    if len(found.sets) > 1:
        cells = _cells(found.overall)
        table.add_row("all sets alike", cells[0], "", "", *cells[1:4], "", cells[4])
    out = io.StringIO()
    Console(file=out, width=200, color_system=None, emoji=False, markup=False, highlight=False).print(table)
    lines = [line.rstrip() for line in out.getvalue().rstrip("\n").split("\n")]
    header = [
        f"{letter}: {stored.path}" + ("" if stored.step is None else f" (step {stored.step})")
        for letter, stored in (("A", found.a), ("B", found.b))
    ]
    return "\n".join([*header, "", *lines, "", *_notes(found)])


def _notes(found: Comparison) -> list[str]:
    notes = ["In points of 100. detectable: a true difference of this size is found (p < 0.05) 4 times in 5."]
    for each in found.sets:
        if any(each.failed):
            _, difference, interval, p, _ = _cells(each.as_wrong)
            notes.append(
                f"{each.name}: {each.failed[0]} attempts of A and {each.failed[1]} of B failed and are "
                f"excluded, and with them {each.unscored} questions; as wrong: {difference} {interval}, p {p}"
            )
    return notes


def _cells(found: PairedDifference) -> tuple[str, str, str, str, str]:
    low, high = found.interval
    return (
        str(found.num_questions),
        f"{100 * found.difference:+.1f}",
        f"[{100 * low:+.1f}, {100 * high:+.1f}]",
        _p(found.p),
        _points(min(1.0, found.detectable)),
    )


def _points(share: float) -> str:
    return f"{100 * share:.1f}"


def _p(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"
