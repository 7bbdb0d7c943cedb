"""Does the simulator's cost model, fitted on half of real rollouts, predict how long the other half takes?

    python benchmarks/fit_cost_model.py --out benchmarks/results/sim_cost_fit.json

Real rollouts: the embedded engine on a tiny model with random weights, many trajectories of several turns,
prompts shared by siblings, tool results behind each turn, different batch limits and lengths. "Time" is the
CPU time of the engine's own thread, so that other work on the machine matters little; tools take none.

Fit: without tool waits the composition of every forward follows from the lengths alone, so one simulation per
rollout gives the number of forwards and the sums of rows, context, new tokens and query-key pairs in them.
The measured times of the even-numbered rollouts, divided by themselves so that each counts alike, give the
five coefficients by least squares with none below zero. Prediction: simulate the odd-numbered ones with them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from transformers import Qwen3Config, Qwen3ForCausalLM

from rocstar.engine.inference.base import Sampling
from rocstar.engine.inference.embedded import EmbeddedEngine
from rocstar.engine.sim.cost import Cluster, CostModel, ReplicaModel
from rocstar.engine.sim.flight import Flight
from rocstar.engine.sim.runs import simulate
from rocstar.engine.sim.work import TrajectoryWork, TurnWork, Workload

CONTEXT = 2048
PREFILL_TOKENS = 2048
VOCAB = 512
TERMS = ("forward_s", "request_s", "context_token_s", "prefill_token_s", "prefill_pair_s")
BAR = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One rollout: so many trajectories on so many slots, with these typical lengths."""

    trajectories: int
    slots: int
    prompt: int
    turn: int
    tool: int


def cases(count: int, seed: int) -> list[Case]:
    rng = random.Random(seed)
    return [
        Case(
            trajectories=rng.choice([8, 16, 32, 48]),
            slots=rng.choice([2, 4, 8, 16, 32]),
            prompt=rng.choice([30, 120, 400]),
            turn=rng.choice([20, 40, 80]),
            tool=rng.choice([5, 40, 120]),
        )
        for _ in range(count)
    ]


def work_of(case: Case, seed: int) -> Workload:
    """Lengths around the case's; siblings in fours."""
    rng = random.Random(seed)
    made = []
    for k in range(case.trajectories):
        if k % 4 == 0:
            prompt = rng.randint(case.prompt // 2, 2 * case.prompt)
        turns = [
            TurnWork(rng.randint(2, 2 * case.turn), rng.randint(1, 2 * case.tool), 0.0)
            for _ in range(rng.randint(0, 3))
        ]
        turns.append(TurnWork(rng.randint(2, 2 * case.turn), 0, 0.0))
        made.append(
            TrajectoryWork(
                traj=f"{k // 4}/{k}",
                group=str(k // 4),
                stage="",
                prompt_tokens=prompt,
                max_tokens=CONTEXT - prompt,
                turns=tuple(turns),
            )
        )
    return Workload(name=str(seed), trajectories=tuple(made))


async def measure(work: Workload, case: Case, model: Qwen3ForCausalLM, thread: ThreadPoolExecutor) -> float:
    """CPU seconds of the engine's thread for the whole rollout."""
    loop = asyncio.get_running_loop()
    ids = random.Random(1)
    prompts = {t.group: [ids.randrange(VOCAB) for _ in range(t.prompt_tokens)] for t in work.trajectories}

    async def one(index: int, t: TrajectoryWork) -> None:
        text = list(prompts[t.group])
        for turn in t.turns:
            found = await engine.generate(
                text,
                max_new_tokens=turn.new_tokens,
                stop_ids=frozenset(),
                sampling=Sampling(),
                seed=index,
                request_id=t.traj,
                deadline=loop.time() + 300.0,
            )
            text += [*found.ids, *(ids.randrange(VOCAB) for _ in range(turn.tool_tokens))]
        engine.release(t.traj)

    async with EmbeddedEngine(
        model, max_running=case.slots, thread=thread, prefill_tokens=PREFILL_TOKENS
    ) as engine:
        await grow(engine, max(t.prompt_tokens + t.response_tokens for t in work.trajectories))
        started = await loop.run_in_executor(thread, time.thread_time)
        async with asyncio.TaskGroup() as tasks:
            for index, t in enumerate(work.trajectories):
                tasks.create_task(one(index, t))
        return await loop.run_in_executor(thread, time.thread_time) - started


async def grow(engine: EmbeddedEngine, tokens: int) -> None:
    """Let the engine take the memory that it will need: a server that has run for a while has it."""
    deadline = asyncio.get_running_loop().time() + 300.0
    for _ in range(3):
        await engine.generate(
            [1] * (tokens - 8),
            max_new_tokens=8,
            stop_ids=frozenset(),
            sampling=Sampling(),
            seed=0,
            request_id="longest",
            deadline=deadline,
        )
        engine.release("longest")


def fly(work: Workload, case: Case, cost: CostModel) -> Flight:
    """The simulated rollout: a slot belongs to a trajectory until it leaves, so slots are reservations."""
    model = ReplicaModel(
        kv_tokens=case.slots * CONTEXT,
        cost=cost,
        max_running=case.slots,
        chunk_tokens=PREFILL_TOKENS,
        conservativeness=0.0,
        clip_tokens=0,
        keep_prompts=False,
    )
    return simulate(work, Cluster(model=model, replicas=1), "reserve")[1]


def features(work: Workload, case: Case) -> list[float]:
    """What the five terms are multiplied with."""
    some = CostModel(
        forward_s=1e-3,
        request_s=1e-4,
        context_token_s=1e-7,
        prefill_token_s=1e-5,
        prefill_pair_s=1e-9,
        mixed=True,
    )
    t = fly(work, case, some).replicas[0].totals
    return [
        float(t.forwards),
        float(t.decode_tokens),
        float(t.context_read),
        float(t.prefill_tokens),
        t.pairs,
    ]


def run(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=options.hidden // 4,
        max_position_embeddings=CONTEXT,
    )
    model = Qwen3ForCausalLM(config).eval()
    chosen = cases(options.rollouts, seed=options.seed)
    works = [work_of(case, options.seed + k) for k, case in enumerate(chosen)]
    with ThreadPoolExecutor(1) as thread:
        asyncio.run(measure(works[0], chosen[0], model, thread))  # the first one pays for what is lazy
        runs = [
            [
                asyncio.run(measure(work, case, model, thread))
                for work, case in zip(works, chosen, strict=True)
            ]
            for _ in range(options.repeats)
        ]
    seconds = [min(times) for times in zip(*runs, strict=True)]
    table = np.array([features(work, case) for work, case in zip(works, chosen, strict=True)])
    fit = np.arange(0, len(works), 2)
    times = np.array(seconds)[fit]
    scale = np.abs(table[fit]).max(axis=0)
    found, _ = nnls(table[fit] / scale / times[:, None], np.ones(len(fit)))
    values = dict(zip(TERMS, (found / scale).tolist(), strict=True))
    cost = CostModel(**{**values, "forward_s": max(values["forward_s"], 1e-9)}, mixed=True)
    rows = []
    for k, (work, case) in enumerate(zip(works, chosen, strict=True)):
        predicted = fly(work, case, cost).makespan_s
        rows.append(
            {
                **asdict(case),
                "fitted": k % 2 == 0,
                "measured_s": seconds[k],
                "predicted_s": predicted,
                "error": predicted / seconds[k] - 1,
            }
        )
    errors = [abs(row["error"]) for row in rows if not row["fitted"]]
    total = sum(r["predicted_s"] for r in rows if not r["fitted"])
    total /= sum(r["measured_s"] for r in rows if not r["fitted"])
    return {
        "command": " ".join(["python", "benchmarks/fit_cost_model.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        "cost": asdict(cost),
        "held_out": {
            "rollouts": len(errors),
            "mean_error": fmean(errors),
            "worst_error": max(errors),
            "error_of_sum": total - 1,
            "within_15%": max(errors) <= BAR,
        },
        "rollouts": rows,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=1, help="the least of so many measurements")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = run(options)
    for row in result["rollouts"]:
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
    print(json.dumps({"cost": result["cost"], "held_out": result["held_out"]}, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
