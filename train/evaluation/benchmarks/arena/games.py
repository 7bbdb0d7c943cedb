"""Two games of one prompt, and the score of many. Pure.

    judgement ──last label──> A>>B ... B>>A ──both games──> points of the policy ──all prompts──> score

In the first game the baseline is A and the policy B; in the second they change sides. A game gives the policy
1, 0.5 or 0, and a decided one (>>) counts as three games. The original's score is the mean of 100 bootstraps
over these games, with their 5% and 95% quantiles: a 90% interval that takes games of one prompt for
independent. Beside it stands the pooled mean with a 95% interval clustered by prompt.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_LABELS = tuple(re.compile(pattern) for pattern in (r"\[\[([AB<>=]+)\]\]", r"\[([AB<>=]+)\]"))
"""In double brackets if there is one, else in single ones."""
STRONG = 3
"""Games that a decided one counts as."""
_POINTS_OF_A = {"A>>B": 1.0, "A>B": 1.0, "A=B": 0.5, "B>A": 0.0, "B>>A": 0.0}
_MIRRORED = {"A<<B": "B>>A", "A<B": "B>A", "B=A": "A=B", "B<A": "A>B", "B<<A": "A>>B"}

BOOTSTRAPS, BOOTSTRAP_TAILS = 100, (0.05, 0.95)


def label_of(judgement: str) -> str | None:
    """Return the last label of a judgement, with A's side first or with B's; None if there is none."""
    for pattern in _LABELS:
        if found := pattern.findall(judgement.upper()):
            label = _MIRRORED.get(found[-1], found[-1])
            return label if label in _POINTS_OF_A else None
    return None


def points_of(first: str, second: str) -> tuple[float, ...]:
    """Return the policy's points in both games, one entry for each that they count as."""
    lost = [1 - _POINTS_OF_A[first]] * _count(first)
    won = [_POINTS_OF_A[second]] * _count(second)
    return (*won, *lost)


def _count(label: str) -> int:
    return STRONG if ">>" in label else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaScore:
    """Share of points, 0 to 1.

    Invariant: `score`, `low` and `high` are the original's; `mean` lies within `interval`.
    """

    score: float
    low: float
    high: float
    mean: float
    interval: tuple[float, float]
    """of 95%, clustered by prompt"""


def arena_score(points: Sequence[Sequence[float]], *, seed: int = 0) -> ArenaScore:
    """Score prompts by their points. ValueError for none."""
    if not points:
        raise ValueError("no prompt was judged")
    flat = np.array([point for prompt in points for point in prompt])
    rng = np.random.default_rng(seed)
    means = [rng.choice(flat, flat.size).mean() for _ in range(BOOTSTRAPS)]
    low, high = np.quantile(means, BOOTSTRAP_TAILS)
    mean = math.fsum(flat) / flat.size
    return ArenaScore(
        score=float(np.mean(means)),
        low=float(low),
        high=float(high),
        mean=mean,
        interval=clustered_interval(points),
    )


def clustered_interval(points: Sequence[Sequence[float]], *, level: float = 0.95) -> tuple[float, float]:
    """Return the interval of the pooled mean, prompts being a sample of such prompts; (0, 1) for one prompt.

    Wilson's interval at the effective sample size that the linearised variance of the ratio gives, with a t
    quantile. Prompts that all have the same share are as many games.
    """
    from scipy import special

    sums = np.array([math.fsum(prompt) for prompt in points])
    counts = np.array([len(prompt) for prompt in points])
    prompts, total = len(points), counts.sum()
    if prompts < 2:
        return 0.0, 1.0
    mean = float(sums.sum() / total)
    residuals = sums - mean * counts
    variance = prompts / (prompts - 1) * float((residuals**2).sum()) / float(total) ** 2
    size = min(mean * (1 - mean) / variance, float(total)) if variance > 0 else float(prompts)
    t = float(special.stdtrit(prompts - 1, (1 + level) / 2))
    centre = (mean + t * t / (2 * size)) / (1 + t * t / size)
    half = t * math.sqrt(mean * (1 - mean) / size + t * t / (4 * size * size)) / (1 + t * t / size)
    return min(max(centre - half, 0.0), mean), max(min(centre + half, 1.0), mean)
