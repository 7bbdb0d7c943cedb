"""An analysis as one self-contained page, and as one JSON object."""

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from rocstar.engine.charts.drawing import Figure, nice_ticks
from rocstar.engine.charts.row_chart import ChartRow, Mark, RowChart, row_chart
from rocstar.engine.types import Origin
from rocstar.train.evaluation.statistics.intervals import interval_of_means
from rocstar.train.reading.analysis.analyse import Analysis, ShownTrajectory
from rocstar.train.reading.analysis.statistics.estimates import (
    BootstrapEstimate,
    ClassShare,
    ControlComparison,
    Floats,
    Lead,
)
from rocstar.train.reading.analysis.token_classes import CLASSES, WORDS, PhraseCount, TokenClass
from rocstar.train.reading.view.chart import Chart, Series
from rocstar.train.reading.view.document import article_page

MIN_TASKS: Final = 8

_TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
NAMES: Final[Mapping[TokenClass, str]] = {TokenClass(name): text for name, text in _TEXTS["classes"].items()}
BEHIND: Final[Mapping[str, str]] = _TEXTS["behind"]


def behind_sentence(name: str, found: ControlComparison) -> str:
    """Return the finding on the first tokens after tool output."""
    what = f"After {BEHIND[name]}"
    ratio = found.ratio
    if not ratio.num_tokens:
        return f"{what}: no token was seen."
    if why := _too_little(ratio):
        return f"{what}: {why}."
    direction = ("no significant difference", "uncertain more often", "uncertain less often")
    times = f"{ratio.value:.2f} times as often as in other turns [{ratio.low:.2f}, {ratio.high:.2f}]"
    return f"{what}: {direction[ratio.lies_beyond(1.0)]}, {times}."


def class_sentence(name: TokenClass, found: ClassShare) -> str:
    """Return the finding on a class of tokens."""
    what = NAMES[name].capitalize()
    if not found.lift.num_tokens:
        return f"{what}: none were seen."
    if why := _too_little(found.lift):
        return f"{what}: {why}."
    share = f"{percent(found.of_top)} of the top fifth, {found.of_all:.0%} of all tokens"
    verdict = ("no significant difference", "more uncertain than most", "less uncertain than most")
    return f"{what}: {verdict[found.lift.lies_beyond(1.0)]} ({share})."


def _too_little(estimate: BootstrapEstimate) -> str:
    """Return the reason for not stating a finding, or ""."""
    if estimate.num_tasks < MIN_TASKS:
        return f"{estimate.num_tokens} tokens of {estimate.num_tasks} tasks are too few"
    if math.isnan(estimate.value) or not all(map(math.isfinite, (estimate.low, estimate.high))):
        return f"{estimate.num_tokens} tokens are too few: the interval is unbounded"
    return ""


def percent(e: BootstrapEstimate) -> str:
    """Format a share with its interval."""
    return f"{e.value:.0%} [{e.low:.0%}, {e.high:.0%}]"


LISTED: Final = 14
"""Tokens and n-grams of a class."""
LEADS: Final = {Lead.asked: ("no tool", 7), Lead.ok: ("good response", 2), Lead.error: ("failing response", 1)}
"""Label and colour of the curve of each kind of turn."""
MOST_DOUBLINGS: Final = 40
"""A larger ratio is drawn as unbounded."""
SHORT_TURNS: Final = 0.1
"""The share of short turns from which a note is shown."""
OFF: Final = 0.01
"""The mean difference of log-probs above which the weights are not those that wrote the records."""


def html_page(analysis: Analysis) -> str:
    """Return the page, which makes no request."""
    classes = [
        [NAMES[name], percent(found.of_top), f"{found.of_all:.0%}"]
        for name, found in zip(CLASSES, analysis.shares, strict=True)
        if found.lift.num_tokens
    ]
    words = analysis.wordings.words
    phrases = [[word, *(_cell(words[word, place]) for place in (True, False))] for word in WORDS]
    texts = [
        {"title": shown.trajectory.task.question, "chip": shown.why, "blocks": text_blocks(analysis, shown)}
        for shown in analysis.shown
    ]
    drawn = [one.as_json() for one in figures(analysis)]
    sections = [
        {"facts": facts(analysis), "notes": notes(analysis)},
        _section("findings", classes, list=format_findings(analysis), figures=drawn),
        _section("tokens", _token_rows(analysis)),
        _section("phrases", phrases),
        _section("trajectories", texts=texts),
        _section("foot"),
    ]
    return article_page("Where the policy was uncertain", sections)


def _section(name: str, rows: Sequence[Any] = (), **content: Any) -> dict[str, Any]:
    """Return a section with its texts, and its rows as a table if it has a head."""
    texts = dict(_TEXTS["sections"][name])
    head = texts.pop("head", None)
    table = {} if head is None else {"table": {"head": head, "rows": rows, "text": True}}
    return {**texts, **content, **table}


def format_findings(analysis: Analysis) -> list[str]:
    """Return the findings as sentences: the comparisons with the control first, then each class."""
    return [
        *(behind_sentence(name, found) for name, found in analysis.behind.items()),
        *(class_sentence(name, found) for name, found in zip(CLASSES, analysis.shares, strict=True)),
    ]


def facts(analysis: Analysis) -> list[tuple[str, str]]:
    """Return the inputs of the analysis."""
    source = analysis.source
    return [
        ("records", str(source.file)),
        ("weights", source.checkpoint),
        (
            "tokens",
            f"{analysis.num_tokens:,} of the policy, in {analysis.num_trajectories:,} trajectories of "
            f"{analysis.num_tasks:,} tasks",
        ),
        ("mean entropy", f"{analysis.mean_entropy:.3f} nats at temperature {source.temperature:g}"),
        ("first tokens of a turn", f"{analysis.window}"),
    ]


def notes(analysis: Analysis) -> list[str]:
    """Return notes on the limits of the results."""
    found, short, turns = [_whose_weights(analysis)], analysis.num_short_turns, analysis.num_turns
    if short >= SHORT_TURNS * turns:
        found.append(
            f"{short:,} of {turns:,} turns have no more than the {analysis.window} first tokens: "
            "their calls and answers are in no other class. A smaller --window separates them."
        )
    return found


def _whose_weights(analysis: Analysis) -> str:
    found, apart = analysis.mismatch, analysis.source.written_before
    if not found.count:
        return "The records have no log-probs: it is unknown if these weights wrote them."
    measured = (
        f"Log-probs under these weights differ from the rollout's by {found.mean:.2g} on average, "
        f"{found.largest:.2g} at most"
    )
    if found.mean <= OFF:
        return f"{measured}: they are, or nearly are, the weights that wrote the records."
    by = "" if not apart else f" ({abs(apart)} updates {'before' if apart < 0 else 'after'})"
    return (
        f"{measured}: other weights{by} than those that wrote the records. The entropies are of these "
        "weights, at tokens that others wrote."
    )


def as_plain(analysis: Analysis) -> dict[str, Any]:
    source = analysis.source
    return {
        "records": str(source.file),
        "step": source.step,
        "checkpoint": source.checkpoint,
        "checkpoint_behind": source.written_before,
        "temperature": source.temperature,
        "window": analysis.window,
        "trajectories": analysis.num_trajectories,
        "tasks": analysis.num_tasks,
        "tokens": analysis.num_tokens,
        "mean_entropy": analysis.mean_entropy,
        "logprob_difference": {
            "mean": _finite(analysis.mismatch.mean),
            "largest": analysis.mismatch.largest if analysis.mismatch.count else None,
        },
        "classes": {
            name.value: {
                "of_top": _plain(found.of_top),
                "of_all": found.of_all,
                "lift": _plain(found.lift),
                "mean_entropy": _finite(found.mean_entropy),
            }
            for name, found in zip(CLASSES, analysis.shares, strict=True)
        },
        "behind_responses": {
            name: {"ratio": _plain(found.ratio), "nats": _plain(found.difference)}
            for name, found in analysis.behind.items()
        },
        "words": {
            word: {
                place: _plain_word(analysis.wordings.words[word, behind])
                for place, behind in (("behind", True), ("elsewhere", False))
            }
            for word in WORDS
        },
        "says": format_findings(analysis),
        "notes": notes(analysis),
    }


def _plain(e: BootstrapEstimate) -> dict[str, Any]:
    return {
        "value": _finite(e.value),
        "low": _finite(e.low),
        "high": _finite(e.high),
        "tasks": e.num_tasks,
        "tokens": e.num_tokens,
    }


def _finite(value: float) -> float | None:
    """Return None for values that JSON cannot represent."""
    return value if math.isfinite(value) else None


def _plain_word(seen: PhraseCount) -> dict[str, Any]:
    share = _share(seen.by_task)
    return {
        "times": seen.times,
        "of_trajectories": None if share is None else dict(zip(("value", "low", "high"), share, strict=True)),
        "in_top": seen.top / seen.times if seen.times else None,
    }


def _share(by_task: Mapping[str, Sequence[bool]]) -> tuple[float, float, float] | None:
    """Return the mean over tasks of the share of trajectories, with its interval; None without a
    trajectory."""
    if not by_task:
        return None
    means = [sum(seen_by) / len(seen_by) for seen_by in by_task.values()]
    low, high = interval_of_means(means, num_attempts=sum(map(len, by_task.values())))
    return sum(means) / len(means), low, high


def _cell(seen: PhraseCount) -> str:
    share = _share(seen.by_task)
    if share is None:
        return "no such turn"
    value, low, high = share
    if not seen.times:
        return f"not seen; at most {high:.0%}"
    return f"{value:.0%} [{low:.0%}, {high:.0%}]; {seen.top / seen.times:.0%} of {seen.times} in the top fifth"


def figures(analysis: Analysis) -> list[Figure | Chart]:
    """Return the shares by class, the ratios to the control, and the entropies by offset."""
    captions = _TEXTS["captions"]
    ratios = captions["ratios"].format(window=analysis.window)
    return [
        Figure(partial(row_chart, _shares(analysis)), captions["shares"], is_wide=True),
        Figure(partial(row_chart, _ratios(analysis)), ratios, is_wide=True),
        _profile(analysis, captions["offsets"]),
    ]


def _shares(analysis: Analysis) -> RowChart:
    found = [one for one in zip(CLASSES, analysis.shares, strict=True) if one[1].lift.num_tokens]
    rows = [ChartRow(NAMES[name], [_mark(one.of_top)], reference=one.of_all) for name, one in found]
    known = [edge for _, one in found for edge in (one.of_top.value, one.of_top.high, one.of_all)]
    ticks = nice_ticks(0.0, max([0.01, *filter(math.isfinite, known)]), 4)
    labels = {tick: f"{tick:.0%}" for tick in ticks}
    return RowChart(title="Share of the most uncertain fifth", rows=rows, ticks=labels)


def _ratios(analysis: Analysis) -> RowChart:
    """Draw the ratios on an axis of powers of two, of which 1 is the middle."""
    rows = [ChartRow(f"after {BEHIND[name]}", [_mark(one.ratio, _log2)]) for name, one in analysis.behind.items()]
    known = [v for row in rows for m in row.marks for v in (m.value, m.low, m.high) if v is not None]
    reach = max([1, *(math.ceil(abs(v)) for v in known if math.isfinite(v))])
    ticks = {float(k): f"{2.0**k:g}x" for k in range(-reach, reach + 1)}
    title = "Ratio to the same offset without a tool"
    return RowChart(title=title, rows=rows, ticks=ticks, line=(0.0, ""))


def _mark(e: BootstrapEstimate, scale: Callable[[float], float] = float) -> Mark:
    return Mark(scale(e.value), scale(e.low), scale(e.high))


def _log2(value: float) -> float:
    if math.isnan(value):
        return value
    doublings = math.log2(value) if 0 < value < math.inf else math.copysign(math.inf, value - 1)
    return doublings if abs(doublings) <= MOST_DOUBLINGS else math.copysign(math.inf, doublings)


def _profile(analysis: Analysis, caption: str) -> Chart:
    series = []
    for lead, found in analysis.profiles.items():
        known = [
            (offset, e)
            for offset, e in enumerate(found)
            if e.num_tokens and all(map(math.isfinite, (e.value, e.low, e.high)))
        ]
        label, color = LEADS[lead]
        band = {float(offset): (max(e.low, 0.0), e.high) for offset, e in known}
        points = [(offset, e.value) for offset, e in known]
        series.append(Series(label=label, points=points, color=color, band=band))
    return Chart(
        title="Mean entropy by offset from the begin of a turn",
        unit="nats",
        series=series,
        marks=[(analysis.window, "")],
        over="token",
        caption=caption,
        is_wide=True,
    )


def _token_rows(analysis: Analysis) -> list[list[Any]]:
    """Return a row per class: its name, and lists of texts with their counts."""
    rows: list[list[Any]] = []
    for name in CLASSES:
        counts, grams = analysis.wordings.tokens[name], analysis.wordings.grams[name]
        singles = [
            (_visible(analysis.decode([token])), f"{count.top:.0f} of {count.times}")
            for token, count in sorted(counts.items(), key=lambda one: (-one[1].top, one[0]))[:LISTED]
            if count.top > 0
        ]
        ranked = sorted(grams.items(), key=lambda one: (-one[1], one[0]))[:LISTED]
        threes = [(_visible(analysis.decode(list(gram))), str(n)) for gram, n in ranked]
        rows.append([NAMES[name], singles or "none seen", threes or "none seen"])
    return rows


def _visible(text: str) -> str:
    """Return the text with visible white space."""
    return text.replace("\n", "\\n").replace("\t", "\\t").replace(" ", "\u2423")


SHADES: Final = (0.95, 0.9, 0.8)
"""Quantiles of a trajectory's entropies above which tokens are shaded, the darkest first."""
MAX_GIVEN: Final = 4_000
"""Characters of a prompt or of tool output that are shown."""


def text_blocks(analysis: Analysis, shown: ShownTrajectory) -> list[tuple[str, list[tuple[str, int, float]]]]:
    """Return the origin and the pieces of each part of a trajectory.

    A piece is a text, its shade from 1 (darkest) to 3, or 0, and its entropy in nats; of other origins than
    the policy there is one piece.
    """
    turns = {turn.first: turn for turn in shown.turns}
    edges = np.quantile(shown.entropy_N, SHADES)
    at = 0
    blocks: list[tuple[str, list[tuple[str, int, float]]]] = []
    for segment in shown.trajectory.segments:
        if segment.origin is not Origin.policy:
            text = analysis.decode(shown.trajectory.ids[segment.start : segment.end].tolist())
            blocks.append((segment.origin.value, [(_clipped(text), 0, 0.0)]))
            continue
        turn = turns[segment.start]
        mine = slice(at, at + len(turn.ids))
        starts = turn.starts_U.tolist()
        texts = [turn.text[a:b] for a, b in zip(starts, [*starts[1:], len(turn.text)], strict=True)]
        blocks.append(("policy", _pieces(texts, shown.entropy_N[mine], shown.top_N[mine], edges)))
        at = mine.stop
    return blocks


def _pieces(texts: list[str], entropy_U: Floats, top_U: Floats, edges: Floats) -> list[tuple[str, int, float]]:
    """Return the pieces of a turn; tokens below the top fifth are joined."""
    pieces: list[tuple[str, int, float]] = []
    for text, nats, top in zip(texts, entropy_U.tolist(), top_U.tolist(), strict=True):
        if top > 0.5:
            pieces.append((text, 1 + int(nats < edges[0]) + int(nats < edges[1]), nats))
        elif pieces and not pieces[-1][1]:
            pieces[-1] = (pieces[-1][0] + text, 0, 0.0)
        else:
            pieces.append((text, 0, 0.0))
    return pieces


def _clipped(text: str) -> str:
    if len(text) <= MAX_GIVEN:
        return text
    half = MAX_GIVEN // 2
    return f"{text[:half]} [{len(text) - 2 * half} more characters] {text[-half:]}"
