"""An analysis as one self-contained page, and as one JSON object."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from markupsafe import Markup

from rocstar.engine.types import Origin
from rocstar.train.evaluation.statistics.intervals import interval_of_means
from rocstar.train.reading.analysis.analyse import Analysis, ShownTrajectory
from rocstar.train.reading.analysis.drawings import ProfileDrawing, RatiosDrawing, SharesDrawing
from rocstar.train.reading.analysis.findings import NAMES, all_sentences
from rocstar.train.reading.analysis.phrase_counts import GRAM, WORDS, PhraseCount, most_uncertain
from rocstar.train.reading.analysis.statistics.estimates import BootstrapEstimate
from rocstar.train.reading.analysis.statistics.tally import Floats
from rocstar.train.reading.analysis.token_classes import CLASSES
from rocstar.train.record.report.page import figure, page, part_of

PARTS = Path(__file__).with_name("templates") / "analysis.html"
LISTED: Final = 14
"""Tokens and n-grams of a class."""
STYLE: Final = (
    ".h1{background:rgba(213,94,0,.62)}.h2{background:rgba(213,94,0,.40)}.h3{background:rgba(230,159,0,.28)}"
    ".h1,.h2,.h3{border-radius:2px} code{white-space:pre-wrap}"
)
FOOT: Final = (
    "Entropy: of softmax(logits / temperature) at each token, in nats, by the learner's forward in "
    "float32. Top fifth: the 20% of a trajectory's tokens with the highest entropy.",
    "Intervals: 95%, each separately, tasks sampled with replacement. The control does not remove other "
    "differences between first and later turns than a tool's response.",
)
SHORT_TURNS: Final = 0.1
"""The share of short turns from which a note is shown."""
OFF: Final = 0.01
"""The mean difference of log-probs above which the weights are not those that wrote the records."""


def html_page(analysis: Analysis) -> str:
    """Return the page, which makes no request."""
    sections = [
        part_of(
            PARTS,
            "head",
            "Where the policy was uncertain",
            facts(analysis),
            notes(analysis),
            format_findings(analysis),
        ),
        Markup('<div class="charts">{}</div>').format(Markup("").join(_figures(analysis))),
        part_of(PARTS, "tokens", _token_rows(analysis)),
        part_of(PARTS, "words", [(word, *_word_cells(analysis, word)) for word in WORDS]),
        part_of(PARTS, "shaded", [_card(analysis, k) for k in range(len(analysis.shown))]),
        part_of(PARTS, "foot", FOOT),
    ]
    text = page("rocstar: entropies", sections, style=STYLE)
    # A policy may write half a surrogate pair; the page shows its escape.
    return text.encode(errors="backslashreplace").decode()


def format_findings(analysis: Analysis) -> list[str]:
    """Return the findings as sentences."""
    return all_sentences(analysis.shares, analysis.behind)


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
    return [_whose_weights(analysis), *_short_turns(analysis)]


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


def _short_turns(analysis: Analysis) -> list[str]:
    turns = analysis.turns
    if turns.within < SHORT_TURNS * turns.count:
        return []
    return [
        f"{turns.within:,} of {turns.count:,} turns have no more than the {turns.window} first tokens: their "
        "calls and answers are in no other class. A smaller --window separates them."
    ]


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
    means = [sum(said) / len(said) for said in by_task.values()]
    low, high = interval_of_means(means, num_attempts=sum(map(len, by_task.values())))
    return sum(means) / len(means), low, high


def _word_cells(analysis: Analysis, word: str) -> tuple[str, str]:
    behind, elsewhere = (_cell(analysis.wordings.words[word, place]) for place in (True, False))
    return behind, elsewhere


def _cell(seen: PhraseCount) -> str:
    share = _share(seen.by_task)
    if share is None:
        return "no such turn"
    value, low, high = share
    if not seen.times:
        return f"not seen; at most {high:.0%}"
    return (
        f"{value:.0%} [{low:.0%}, {high:.0%}]; {seen.top / seen.times:.0%} of {seen.times} in the top fifth"
    )


def _figures(analysis: Analysis) -> list[Markup]:
    shares = "Dots: share of the top fifth, with 95% intervals over tasks. Grey lines: share of all tokens."
    ratios = (
        f"The first {analysis.window} tokens after a response, compared with tokens at the same offset of "
        "turns that answer no tool. An interval with 1x shows no difference."
    )
    offsets = "Bands: 95% intervals over tasks. The dashed line ends what counts as the first tokens."
    return [
        figure(SharesDrawing(shares=analysis.shares), shares, is_wide=True),
        figure(RatiosDrawing(behind=analysis.behind), ratios, is_wide=True),
        figure(ProfileDrawing(profiles=analysis.profiles, window=analysis.window), offsets, is_wide=True),
    ]


Listed = list[tuple[str, str]]


def _token_rows(analysis: Analysis) -> list[tuple[str, Listed, Listed]]:
    rows = []
    for name in CLASSES:
        counts, grams = analysis.wordings.tokens[name], analysis.wordings.grams[name]
        singles = [
            (_visible(analysis.decode([token])), f"{count.top:.0f} of {count.times}")
            for token, count in most_uncertain(counts, LISTED)
        ]
        ranked = sorted(grams.items(), key=lambda one: (-one[1], one[0]))[:LISTED]
        threes = [(_visible(analysis.decode(list(gram))), str(n)) for gram, n in ranked]
        assert all(len(gram) == GRAM for gram, _ in ranked)
        rows.append((NAMES[name], singles, threes))
    return rows


def _visible(text: str) -> str:
    """Return the text with visible white space."""
    return text.replace("\n", "\\n").replace("\t", "\\t").replace(" ", "\u2423")


def _card(analysis: Analysis, k: int) -> tuple[str, str, list[Any]]:
    shown = analysis.shown[k]
    task = shown.trajectory.task
    return task.question, shown.why, list(text_blocks(analysis, shown))


SHADES: Final = (0.95, 0.9, 0.8)
"""Quantiles of a trajectory's entropies above which tokens are shaded, the darkest first."""
MAX_GIVEN: Final = 4_000
"""Characters of a prompt or of tool output that are shown."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a turn's text. For a token of the top fifth: its shade, 1 (darkest) to 3, and its entropy."""

    text: str
    shade: int = 0
    nats: float = 0.0


@dataclass(frozen=True, slots=True)
class Block:
    """The text of one origin: for `policy` in pieces, for others as one."""

    origin: str
    pieces: list[Piece]


def text_blocks(analysis: Analysis, shown: ShownTrajectory) -> Iterator[Block]:
    """Yield a trajectory from its prompt to its end."""
    turns = {turn.first: turn for turn in shown.turns}
    edges = np.quantile(shown.entropy_N, SHADES)
    at = 0
    for segment in shown.trajectory.segments:
        if segment.origin is not Origin.policy:
            text = analysis.decode(shown.trajectory.ids[segment.start : segment.end].tolist())
            yield Block(segment.origin.value, [Piece(_clipped(text))])
            continue
        turn = turns[segment.start]
        mine = slice(at, at + len(turn.ids))
        ends = [*turn.starts_U.tolist()[1:], len(turn.text)]
        spans = zip(turn.starts_U.tolist(), ends, strict=True)
        texts = [turn.text[start:end] for start, end in spans]
        yield Block("policy", list(_pieces(texts, shown.entropy_N[mine], shown.top_N[mine], edges)))
        at = mine.stop


def _pieces(texts: list[str], entropy_U: Floats, top_U: Floats, edges: Floats) -> Iterator[Piece]:
    """Yield the pieces of a turn; tokens below the top fifth are joined."""
    plain = ""
    for text, nats, top in zip(texts, entropy_U.tolist(), top_U.tolist(), strict=True):
        if top <= 0.5:
            plain += text
            continue
        if plain:
            yield Piece(plain)
            plain = ""
        yield Piece(text, 1 + int(nats < edges[0]) + int(nats < edges[1]), nats)
    if plain:
        yield Piece(plain)


def _clipped(text: str) -> str:
    if len(text) <= MAX_GIVEN:
        return text
    half = MAX_GIVEN // 2
    return f"{text[:half]} [{len(text) - 2 * half} more characters] {text[-half:]}"
