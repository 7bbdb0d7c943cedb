"""A trajectory as text whose most uncertain tokens are shaded, like the report's figures 10 and 11."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rocstar.engine.types import Origin
from rocstar.train.reading.analysis.analyse import Analysis, Shown
from rocstar.train.reading.analysis.statistics.top_fifth import Floats

SHADES: Final = (0.95, 0.9, 0.8)
"""Quantiles of a trajectory's entropies from which tokens are shaded: the darkest first."""
MAX_GIVEN: Final = 4_000
"""Characters of a prompt or of tool output that are shown."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of a turn. Of a token of the top fifth: its shade, 1 (darkest) to 3, and its entropy."""

    text: str
    shade: int = 0
    nats: float = 0.0


@dataclass(frozen=True, slots=True)
class Block:
    """What one wrote: `policy` in pieces; of others the text alone."""

    origin: str
    pieces: list[Piece]


def blocks(analysis: Analysis, shown: Shown) -> Iterator[Block]:
    """A trajectory from its prompt to its end."""
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
    """Tokens below the top fifth run together."""
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
