"""Does the analysis find a bump of entropy behind tool output that is there, and none that is not?

    python benchmarks/analyse_power.py --out benchmarks/results/analyse_power.json

Trajectories whose entropies are known: gamma noise, half of the tokens almost certain, tasks and trajectories
that are more or less uncertain as a whole, and a rise at the begin of every turn, tool or no tool, that fades
within a few tokens. With the plant, each of the first tokens behind a tool's response has 0.3 nats more.
Each of many seeds is analysed with and without it, by the code that `rocstar analyse` runs; beside it stands
what is found without a control, where tokens behind a response are held against all others. A bump is
found where the 95% interval of the ratio is above 1. No model, no run: seconds on one core.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rocstar.train.reading.analysis.statistics.cluster_bootstrap import TaskDraws
from rocstar.train.reading.analysis.statistics.estimates import class_shares, matched
from rocstar.train.reading.analysis.statistics.tally import Lead, Tally

ROOT = Path(__file__).parents[1]
FIRST_SEEDS = 20
WINDOW = 8
AFTER = (Lead.ok, Lead.error)
REST, NEAR = 0, 1
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """What trajectories are like."""

    tasks: int = 16
    siblings: int = 4
    turns: float = 2.5
    """Mean number; at least one."""
    tokens: int = 120
    """Mean length of a turn."""
    certain: float = 0.5
    """Share of the tokens that are almost certain."""
    mean: float = 0.5
    """Nats, of the others."""
    task_sd: float = 0.3
    trajectory_sd: float = 0.2
    """Of the logarithm of the mean."""
    onset: float = 0.6
    """Nats more at the begin of every turn, fading by half every two tokens."""
    bump: float = 0.0
    """Nats more on each of the first WINDOW tokens behind a response."""


def tally_of(world: World, seed: int) -> Tally:
    """The trajectories of one seed, counted; classes are the tokens behind a response and all others."""
    rng = np.random.default_rng(seed)
    tally = Tally(2)
    for task in range(world.tasks):
        hardness = rng.normal(0, world.task_sd)
        for _ in range(world.siblings):
            mean = world.mean * np.exp(hardness + rng.normal(0, world.trajectory_sd))
            parts = list(turns_of(world, mean, rng))
            entropy_N = np.concatenate([entropy for entropy, _, _ in parts])
            lead_N = np.concatenate([np.full(len(entropy), lead) for entropy, lead, _ in parts])
            offset_N = np.concatenate([offset for _, _, offset in parts])
            class_N = np.where((lead_N != Lead.asked) & (offset_N < WINDOW), NEAR, REST)
            tally.add(str(task), entropy_N, class_N, lead_N, offset_N)
    return tally


def turns_of(world: World, mean: float, rng: np.random.Generator) -> Iterator[tuple[Floats, int, NDArray]]:
    for turn in range(1 + rng.poisson(world.turns - 1)):
        length = max(WINDOW, int(rng.gamma(4, world.tokens / 4)))
        offset = np.arange(length)
        entropy = rng.gamma(1.0, mean, length) * (rng.random(length) >= world.certain)
        entropy += rng.gamma(0.3, 0.05, length) + world.onset * rng.random(length) * 0.5 ** (offset / 2)
        lead = Lead.asked if turn == 0 else Lead.error if rng.random() < 0.3 else Lead.ok
        if lead != Lead.asked:
            entropy += world.bump * (offset < WINDOW)
        yield entropy, lead, offset


def found(world: World, seed: int) -> dict[str, bool | float]:
    tally = tally_of(world, seed)
    draws = TaskDraws(tally.num_tasks, np.random.default_rng([seed, 1]))
    against = matched(tally, AFTER, WINDOW, draws)
    return {
        "above": against.ratio.lies_beyond(1.0) > 0,
        "beyond": against.ratio.lies_beyond(1.0) != 0,
        "without_control": class_shares(tally, draws)[NEAR].lift.lies_beyond(1.0) > 0,
        "ratio": against.ratio.value,
        "nats": against.difference.value,
        "nats_inside": against.difference.low <= world.bump <= against.difference.high,
    }


def summary(world: World, seeds: int) -> dict:
    rows = [found(world, seed) for seed in range(seeds)]
    first = rows[:FIRST_SEEDS]
    return {
        **asdict(world),
        "trajectories": world.tasks * world.siblings,
        "first_20_above": sum(bool(row["above"]) for row in first),
        "first_20_beyond": sum(bool(row["beyond"]) for row in first),
        "seeds": seeds,
        "above": float(np.mean([row["above"] for row in rows])),
        "beyond": float(np.mean([row["beyond"] for row in rows])),
        "above_without_control": float(np.mean([row["without_control"] for row in rows])),
        "median_ratio": float(np.median([row["ratio"] for row in rows])),
        "mean_nats": float(np.mean([row["nats"] for row in rows])),
        "nats_interval_covers": float(np.mean([row["nats_inside"] for row in rows])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "analyse_power.json")
    options = parser.parse_args()
    started, cases = time.process_time(), []
    for tasks, siblings in ((64, 1), (16, 4), (8, 8)):
        for bump in (0.3, 0.0):
            cases.append(summary(World(tasks=tasks, siblings=siblings, bump=bump), options.seeds))
            print(json.dumps(cases[-1]), flush=True)
    made = {
        "command": " ".join(["python", *sys.argv]),
        "cpu_s": time.process_time() - started,
        "window": WINDOW,
        "cases": cases,
    }
    options.out.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
