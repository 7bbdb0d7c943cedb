"""How often a court of a question's form finds what is not there, and what it could find, by simulation.

A law draws the outcomes of all arms for one seed. In `unlike` the arms have equal means and unequal spreads; in
every other law a court without a difference has arms that are alike, as two names of one recipe are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import claim, finish

from .decision import is_rejected
from .question import Question

Floats = NDArray[np.float64]
COURTS: Final = 2_000
POWER: Final = 0.8


def normal(rng: np.random.Generator, arms: int) -> Floats:
    return rng.normal() + rng.normal(size=arms)


def skewed(rng: np.random.Generator, arms: int) -> Floats:
    return rng.normal() + np.exp(rng.normal(size=arms))


def collapsing(rng: np.random.Generator, arms: int) -> Floats:
    """One run in ten collapses."""
    return rng.normal(size=arms) - 8 * (rng.random(arms) < 0.1)


def saturated(rng: np.random.Generator, arms: int) -> Floats:
    """128 attempts of which nearly all are right: most differences are equal, many 0."""
    return rng.binomial(128, 0.99, size=arms) / 128


def unlike(rng: np.random.Generator, arms: int) -> Floats:
    return rng.normal(size=arms) * np.geomspace(1, 4, arms)


LAWS: Final[Mapping[str, Callable[[np.random.Generator, int], Floats]]] = {
    law.__name__: law for law in (normal, skewed, collapsing, saturated, unlike)
}


def found(question: Question, law: str, courts: int, seed: int, effect: float = 0.0) -> tuple[float, float]:
    """Return the share of courts that find any difference, and the share that find the first arm's.

    `effect` is added to the outcomes of the first arm after the control.
    """
    rng, looks = np.random.default_rng(seed), question.stopping.looks
    anything = first = 0
    for _ in range(courts):
        outcomes = np.array([LAWS[law](rng, len(question.arms)) for _ in range(question.seeds)])
        outcomes[:, 1] += effect
        differences = outcomes[:, 1:] - outcomes[:, :1]
        finds = [is_rejected(list(column), looks, looks[-1], question.level) for column in differences.T]
        anything += any(finds)
        first += finds[0]
    return anything / courts, first / courts


def detectable(question: Question, courts: int, seed: int) -> float:
    """Return the difference that 80% of courts find, in standard deviations of the paired difference (normal)."""
    near, far = 0.0, 8.0
    for _ in range(9):
        middle = (near + far) / 2
        _, power = found(question, "normal", courts, seed, effect=middle * 2**0.5)
        near, far = (near, middle) if power >= POWER else (middle, far)
    return far


def simulate(name: str, question: Question, out: Path | None, courts: int = COURTS) -> int:
    """Print and write the rates of false findings, and the detectable difference; return the exit code."""
    rates = {law: found(question, law, courts, seed=0)[0] for law in LAWS}
    about = f"court of {len(question.arms)} arms, looks at {', '.join(map(str, question.stopping.looks))} seeds"
    claims = [
        claim(f"{about}: courts without a difference that find one, {law}", rate, at_most=question.stopping.alpha)
        for law, rate in rates.items()
    ]
    claims.append(
        claim(
            f"{about}: difference found by 80% of courts", detectable(question, courts // 5, 1), "sd of a difference"
        )
    )
    return finish(f"court_{name}_simulated", {"courts": courts}, claims, out, seeds=[0, 1])
