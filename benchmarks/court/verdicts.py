"""The table, the figure and the result of a question."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.report import claim, finish
from rocstar.engine.charts.drawing import nice_ticks
from rocstar.engine.charts.row_chart import ChartRow, Mark, RowChart, row_chart

from .curves import AT, Curve
from .decision import Decision, decide
from .question import Question

Curves = Mapping[str, Sequence[Curve]]
Decisions = Mapping[str, Decision]


def word(question: Question, decision: Decision) -> str:
    """Return the verdict on an arm in the words of the table."""
    if decision.verdict == "undecided":
        return "undecided"
    return "better" if decision.verdict == question.primary.better else "worse"


def outcomes(question: Question, curves: Sequence[Curve], measure: str = "") -> list[float]:
    """Return the primary outcome of each seed, or another measure at the budget's end."""
    ((unit, budget),) = question.budget.limits.items()
    at = AT["end" if measure else question.primary.at]
    return [at(curve, measure or question.primary.measure, unit, budget) for curve in curves]


def judged(question: Question, curves: Curves, arm: str) -> Decision:
    """Return the decision on an arm from the seeds that it and the control have."""
    ours, controls = outcomes(question, curves[arm]), outcomes(question, curves[question.control])
    differences = [a - b for a, b in zip(ours, controls, strict=False)]
    return decide(differences, question.stopping.looks, question.level)


def read_verdicts(result: Mapping[str, Any]) -> tuple[Question, Curves, Decisions]:
    """Return what `publish` wrote."""
    question = Question.model_validate(result["question"])
    curves: dict[str, list[Curve]] = {arm: [] for arm in question.arms}
    for one in result["curves"]:
        columns = {name: values for name, values in one.items() if isinstance(values, list)}
        rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        curves[one["arm"]].append([{name: value for name, value in row.items() if value is not None} for row in rows])
    others = [arm for arm in curves if arm != question.control]
    return question, curves, {arm: judged(question, curves, arm) for arm in others}


def table(question: Question, curves: Curves, decisions: Decisions) -> str:
    """Return the table of a question in Markdown; a mean is over the arm's seeds."""
    others = question.secondary
    lines = [
        question.question,
        "",
        "| arm | seeds | " + " | ".join([question.primary.measure, "minus control", "verdict", *others]) + " |",
        "|---" * (5 + len(others)) + "|",
    ]
    start = [
        fmean(curve[0][measure] for curve in curves[question.control])
        for measure in [question.primary.measure, *others]
    ]
    cells = ["start of the control", "", f"{start[0]:.3f}", "", "", *(f"{value:.3f}" for value in start[1:])]
    lines.append("| " + " | ".join(cells) + " |")
    for arm, its in curves.items():
        cells = [arm, str(len(its)), f"{fmean(outcomes(question, its)):.3f}", "", "control"]
        if arm in decisions:
            one = decisions[arm]
            ends = ", ".join(f"{end:+.3f}" if math.isfinite(end) else "?" for end in one.interval)
            first = f", first {one.seeds} seeds" * (one.seeds < len(its))
            cells[3:] = [f"{one.difference:+.3f} [{ends}]{first}", word(question, one)]
        cells += [f"{fmean(outcomes(question, its, measure)):.3f}" for measure in others]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def figure(question: Question, decisions: Decisions) -> str:
    """Return the differences to the control with their intervals, as a file of SVG."""
    ends = [end for one in decisions.values() for end in (*one.interval, one.difference) if math.isfinite(end)]
    ticks = nice_ticks(min(0.0, *ends), max(0.0, *ends))
    rows = []
    for arm, one in decisions.items():
        low, high = (end if math.isfinite(end) else None for end in one.interval)
        rows.append(ChartRow(arm, [Mark(one.difference, low, high, text=word(question, one))]))
    chart = RowChart(
        title=question.question,
        subtitle=f"{question.primary.measure} minus {question.control}, with the interval over seeds",
        rows=rows,
        ticks={tick: f"{tick:g}" for tick in ticks},
        line=(0.0, question.control),
    )
    return row_chart(chart, standalone=True)


def publish(
    name: str, question: Question, written: Mapping[str, Any], curves: Curves, decisions: Decisions, out: Path | None
) -> int:
    """Write the result, and the figure beside it; return the exit code. written: with the `commits` of the runs."""
    control, claims = question.control, []
    for arm, one in decisions.items():
        about = f"{question.primary.measure}: {arm} minus {control}"
        claims += claims_of(f"{about}, {word(question, one)}", one)
    for measure in dict.fromkeys([question.primary.measure, *question.secondary]):
        ends, starts = outcomes(question, curves[control], measure), [curve[0][measure] for curve in curves[control]]
        changes = [end - start for end, start in zip(ends, starts, strict=True)]
        claims += claims_of(f"{measure}: {control} minus its start, not tested", decide(changes, [len(changes)], 0.05))
    if out is not None:
        out.with_suffix(".svg").write_text(figure(question, decisions), encoding="utf-8")
    data = {**written, "question": question.model_dump(), "curves": list(small(question, curves))}
    first, *others = written["commits"]
    commit = first if not others else ""  # of several, the list is in the result
    return finish(f"court_{name}", data, claims, out, seeds=range(len(curves[control])), commit=commit)


def claims_of(about: str, one: Decision) -> list[dict[str, Any]]:
    """Return the claims of a difference: its mean, and the ends of its interval where there are any."""
    ends = zip(("lower", "upper"), one.interval, strict=True)
    intervals = [claim(f"{about}, {end} end over seeds", value) for end, value in ends if math.isfinite(value)]
    return [claim(about, one.difference), *intervals]


def small(question: Question, curves: Curves) -> list[dict[str, Any]]:
    """Return the curves of every arm and seed, with the measures of the question alone."""
    names = ["tokens", "cpu_s", question.primary.measure, *question.secondary]
    return [
        {"arm": arm, "seed": seed, **{n: [round(row[n], 4) if n in row else None for row in curve] for n in names}}
        for arm, its in curves.items()
        for seed, curve in enumerate(its)
    ]
