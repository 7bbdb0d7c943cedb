"""The numbers as tables: scores, what the attempts took, and what a set counts besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rocstar.train.evaluation.report.forest import Estimate, ForestRow
from rocstar.train.evaluation.report.numbers import Bounds, SetNumbers, detectable
from rocstar.train.record.report.scales import format_value

NONE = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """A row per set, its name first."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def forest_rows(sets: Mapping[str, SetNumbers]) -> list[ForestRow]:
    """Of each set the estimates that say something of their own."""
    return [
        ForestRow(
            name=name, detail=f"avg@{one.k}, {one.num_questions:,} questions", estimates=_estimates(one)
        )
        for name, one in sets.items()
    ]


def _estimates(one: SetNumbers) -> list[Estimate]:
    scores = [(0, one.as_wrong.avg, one.as_wrong.interval)]
    if one.failed:
        scores.append((1, one.left_out.avg, one.left_out.interval))
    if one.contamination is not None and one.contamination.num_contaminated:
        scores.append((2, one.contamination.avg_clean, one.contamination.interval_clean))
    return [
        Estimate(kind, value, *(interval or (None, None)))
        for kind, value, interval in scores
        if value is not None
    ]


def tables(sets: Mapping[str, SetNumbers]) -> list[Table]:
    """The tables that have a row."""
    return [table for table in (_scores(sets), _attempts(sets), _further(sets), _overlap(sets)) if table.rows]


def _scores(sets: Mapping[str, SetNumbers]) -> Table:
    rows = []
    for name, one in sets.items():
        wrong, left_out, k = one.as_wrong, one.left_out, str(one.k)
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
        "avg@k: share of correct attempts, every question weighing the same; a failed attempt counts as "
        "wrong, and in the column beside it not at all. pass@k: at least one of k attempts is correct; "
        "maj@k: the most frequent answer is; pass^k: all k are. detectable: the smallest difference to "
        "another evaluation of this size that is found with power 0.8 at the 5% level when the two are "
        "compared as wholes; comparing question by question (rocstar compare) finds smaller ones."
    )
    return Table("Scores", head, rows, note)


def _first(told: Mapping[str, float | None], other: Mapping[str, float | None], k: str) -> float | None:
    return told.get(k, other.get(k))


def _attempts(sets: Mapping[str, SetNumbers]) -> Table:
    rows = []
    for name, one in sets.items():
        kinds = ", ".join(f"{number} {kind}" for kind, number in one.failures.items())
        rows.append(
            [
                name,
                f"{one.num_questions * one.k:,}",
                f"{one.failed:,}" + (f" ({kinds})" if kinds else ""),
                NONE if one.num_short is None else f"{one.num_short:,}",
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
        "failed: lost to the system, so without a verdict. short: questions with fewer than k scored "
        "attempts. truncated: cut by a limit before an answer. unextracted: ended without a boxed answer. "
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
            kept = "kept out of the stages" if found.left_out_of_training else ""
            rows.append(
                [
                    name,
                    f"{found.num_contaminated:,} of {one.num_questions:,}",
                    _with_interval(found.avg_clean, found.interval_clean),
                    f"{found.rule}{'; ' if found.rule and kept else ''}{kept}",
                ]
            )
    note = "What the rule does not find may still have been seen: no overlap is no proof that a set is clean."
    return Table(
        "Questions among the training tasks", ["set", "found", "avg@k on the others", "rule"], rows, note
    )


def _with_interval(value: float | None, interval: Bounds | None) -> str:
    """`0.433 [0.36, 0.51]`."""
    return score(value) + (
        f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval and value is not None else ""
    )


def score(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def number(value: float | None) -> str:
    return NONE if value is None else format_value(value, "")
