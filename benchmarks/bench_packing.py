"""From kept trajectories to microbatches: CPU per token, and how busy packing leaves the ranks.

    python benchmarks/bench_packing.py --out benchmarks/results/packing.json

Cost: `policy_examples` and `pack` on synthetic trajectories of 6,450 tokens at three sizes, in CPU seconds of
this process per million tokens. Balance: the FLOP efficiency of rounds of 64 ranks of a 14B model on three
mixes of lengths, by best-balanced bins and by next fit in the order of ids, as packing was before.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import itertools

from sandbox_bench.report import bar, finish

from rocstar.engine.types import (
    FinishReason,
    Origin,
    Scored,
    Segment,
    Task,
    Trajectory,
    TrajectoryKey,
)
from rocstar.train.learner.balance import Cost, balance, efficiency
from rocstar.train.learner.batch import pack, policy_examples

QWEN3_14B = Cost(per_token=2 * 13.2e9, per_pair=4.0 * 40 * 5120, per_target=2.0 * 5120 * 151936)
MIXES = {"stage1": (3_000, 8_192), "stage2": (6_000, 12_288), "long": (10_000, 12_288)}
PROMPT, LENGTH, BUDGET, RANKS = 300, 6_450, 20_480, 64


def trajectory(k: int, rng: np.random.Generator) -> Trajectory:
    """A trajectory with a tool's answer in every tenth of it."""
    edges = np.linspace(PROMPT, LENGTH, 21).astype(int)
    segments = [Segment(start=0, end=PROMPT, origin=Origin.prompt)]
    for n, (start, end) in enumerate(itertools.pairwise(edges)):
        origin = Origin.tool if n % 2 else Origin.policy
        segments.append(Segment(start=int(start), end=int(end), origin=origin))
    wrote = np.zeros(LENGTH, bool)
    for segment in segments:
        wrote[segment.start : segment.end] = segment.origin is Origin.policy
    ids = np.concatenate([np.full(PROMPT, k // 16), rng.integers(0, 150_000, LENGTH - PROMPT)])
    task = Task(id=str(k // 16), source="s", question="q", answer="a")
    return Trajectory(
        key=TrajectoryKey(seed=0, step=1, task_id=task.id, sibling=k % 16),
        task=task,
        ids=tuple(ids.tolist()),
        logprobs=tuple(-0.5 if one else None for one in wrote),
        segments=tuple(segments),
        version_spans=(),
        turns=(),
        finish_reason=FinishReason.answered,
        outcome=Scored(reward=1.0, method="strict"),
    )


def cost_of(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    trajectories = [trajectory(k, rng) for k in range(number)]
    began = time.process_time()
    micros = pack(
        policy_examples(trajectories, [1.0] * number), tokens_per_microbatch=BUDGET, ranks=8, cost=QWEN3_14B
    )
    seconds = time.process_time() - began
    tokens = number * LENGTH
    return {
        "trajectories": number,
        "cpu_s": round(seconds, 3),
        "cpu_s_per_million_tokens": round(seconds / tokens * 1e6, 4),
        "microbatches": len(micros),
    }


def next_fit(lengths: list[int], costs: list[float]) -> list[float]:
    """Costs of microbatches as they were made before: in the order of arrival, a new one when one is full."""
    found: list[float] = []
    room = 0
    for length, cost in zip(lengths, costs, strict=True):
        if length > room:
            found.append(0.0)
            room = BUDGET
        found[-1] += cost
        room -= length
    return found


def balance_of(mean: int, cap: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(mean), 0.6, 8192), 200, cap).astype(int).tolist()
    costs = [QWEN3_14B.of(length, 0, length // 2) for length in lengths]
    bins = balance(lengths, costs, room=BUDGET, ranks=RANKS)
    return {
        "mean": mean,
        "cap": cap,
        "balanced": round(efficiency([sum(costs[k] for k in one) for one in bins], RANKS), 4),
        "next_fit": round(efficiency(next_fit(lengths, costs), RANKS), 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 128, 256], help="trajectories")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    mixes = {name: balance_of(*mix) for name, mix in MIXES.items()}
    sizes = [cost_of(number) for number in options.sizes]
    kept = 8192 * LENGTH / 1e6
    extrapolated = sizes[-1]["cpu_s_per_million_tokens"] * kept
    for row in (*mixes.items(), *sizes):
        print(row)
    bars = [
        bar(f"FLOP efficiency, {name}", mix["balanced"], 0.97, at_most=False) for name, mix in mixes.items()
    ]
    bars.append(bar("CPU s of packing 8,192 kept trajectories", extrapolated, 15.0, at_most=True))
    return finish("packing", {"mixes": mixes, "sizes": sizes}, bars, options.out)


if __name__ == "__main__":
    raise SystemExit(main())
