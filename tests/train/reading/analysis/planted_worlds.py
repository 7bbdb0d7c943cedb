"""Trajectories whose entropies are known, with and without a planted bump behind tool responses.

Gamma noise, half of the tokens almost certain, tasks and trajectories with a mean of their own, and a rise at
the begin of every turn that fades within a few tokens. With the bump, each of the first WINDOW tokens behind
a tool's response has `bump` nats more.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocstar.train.reading.analysis.statistics.estimates import (
    Lead,
    Tally,
    class_shares,
    compare_with_control,
    draw_tasks,
)

WINDOW = 8
AFTER = (Lead.ok, Lead.error)
REST, NEAR = 0, 1
SIBLINGS, TURNS, TOKENS, CERTAIN, MEAN, ONSET = 4, 2.5, 120, 0.5, 0.5, 0.6
"""Trajectories of a task, mean turns, mean tokens of a turn, share of almost certain tokens, nats of the
others and nats more at the begin of a turn."""


@dataclass(frozen=True)
class World:
    """`task_sd`, `trajectory_sd`: of the logarithm of the mean entropy."""

    tasks: int = 16
    task_sd: float = 0.3
    trajectory_sd: float = 0.2
    bump: float = 0.0


def tally_of(world: World, seed: int) -> Tally:
    """The trajectories of one seed, counted in two classes: tokens behind a response, and all others."""
    rng = np.random.default_rng(seed)
    tally = Tally(2)
    for task in range(world.tasks):
        hardness = rng.normal(0, world.task_sd)
        for _ in range(SIBLINGS):
            mean = MEAN * np.exp(hardness + rng.normal(0, world.trajectory_sd))
            parts = list(turns_of(world, mean, rng))
            entropy_N = np.concatenate([entropy for entropy, _, _ in parts])
            lead_N = np.concatenate([np.full(len(entropy), lead) for entropy, lead, _ in parts])
            offset_N = np.concatenate([offset for _, _, offset in parts])
            class_N = np.where((lead_N != Lead.asked) & (offset_N < WINDOW), NEAR, REST)
            tally.add(str(task), entropy_N, class_N, lead_N, offset_N)
    return tally


def turns_of(
    world: World, mean: float, rng: np.random.Generator
) -> Iterator[tuple[NDArray[np.float64], int, NDArray[Any]]]:
    """Entropies, lead and offsets of each turn."""
    for turn in range(1 + rng.poisson(TURNS - 1)):
        length = max(WINDOW, int(rng.gamma(4, TOKENS / 4)))
        offset = np.arange(length)
        entropy = rng.gamma(1.0, mean, length) * (rng.random(length) >= CERTAIN)
        entropy += rng.gamma(0.3, 0.05, length) + ONSET * rng.random(length) * 0.5 ** (offset / 2)
        lead = Lead.asked if turn == 0 else Lead.error if rng.random() < 0.3 else Lead.ok
        if lead != Lead.asked:
            entropy += world.bump * (offset < WINDOW)
        yield entropy, lead, offset


def directions(world: World, seeds: int) -> tuple[list[int], list[int]]:
    """The sign of the finding of each seed: against the matched control, and without a control."""
    controlled, plain = [], []
    for seed in range(seeds):
        tally = tally_of(world, seed)
        draws = draw_tasks(tally.num_tasks, np.random.default_rng([seed, 1]))
        controlled.append(compare_with_control(tally, AFTER, WINDOW, draws).ratio.lies_beyond(1.0))
        plain.append(class_shares(tally, draws)[NEAR].lift.lies_beyond(1.0))
    return controlled, plain
