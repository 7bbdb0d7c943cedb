"""Does the simulator's cost model, fitted on half of real rollouts, predict how long the other half takes?

    python benchmarks/fit_cost_model.py --out benchmarks/results/sim_cost_fit.json

Real rollouts: the embedded engine on a tiny model with random weights, many trajectories of several turns,
prompts shared by siblings, tool results behind each turn, different batch limits and lengths; tools take no
time. Trajectories enter in order as slots become free, as the simulated scheduler (`reserve`) lets them. The
engine runs in lockstep, and the process keeps its memory and settles its garbage, both as `rocstar train`
does by default, so that the composition of every forward follows from the lengths alone: one run counts it.

Measurement, the same for every seed and decided before the errors of any seed of this file were seen:
"Time" is the CPU time of the engine's own thread, user and system. The speed of a shared machine moves by a
fifth meanwhile, so a fixed rollout runs before and after each measured one and a time is its ratio to their
mean, at the fixed one's median (steady.py). Every pass takes the rollouts in another order; the median over
the passes counts; nothing is left out. `spread` is how far single passes are off that median on average:
what of the errors can be noise. `composition_off` is how far, at worst, the engine's forwards and what was
in them are off the simulator's: what of the errors is not the coefficients'.

Fit: one simulation per rollout gives the number of forwards and the sums of rows, context, new tokens and
query-key pairs in them. The measured times of the even-numbered rollouts, divided by themselves so that each
counts alike, give the five coefficients by least squares with none below zero. Prediction: simulate the
odd-numbered ones with them. Seeds draw their rollouts apart from each other (`seed`, `seed` + 1, ...: give
seeds at least as far apart as there are rollouts); the bar takes the worst held-out rollout of all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from sandbox_bench.report import ROOT, bar, finish
from scheduling.peers import POLICIES
from scipy.optimize import nnls
from steady import Steady, measure, settle
from transformers import Qwen3Config, Qwen3ForCausalLM

from rocstar.engine.garbage import settled_garbage
from rocstar.engine.inference.base import Sampling
from rocstar.engine.inference.embedded.embedded import EmbeddedEngine
from rocstar.engine.inference.embedded.kv import Extra
from rocstar.engine.inference.embedded.rows import Row
from rocstar.engine.sim.cost import Cluster, CostModel, ReplicaModel, pairs
from rocstar.engine.sim.flight import Flight
from rocstar.engine.sim.runs import simulate
from rocstar.engine.sim.work import TrajectoryWork, TurnWork, Workload
from rocstar.train.learner.host_memory import keep_freed_memory

CONTEXT = 2048
PREFILL_TOKENS = 2048
VOCAB = 512
TERMS = ("forward_s", "request_s", "context_token_s", "prefill_token_s", "prefill_pair_s")
COUNTED = ("forwards", "rows", "context", "new_tokens", "pairs")
"""What the terms are multiplied with."""
BAR = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One rollout: so many trajectories on so many slots, with these typical lengths."""

    trajectories: int
    slots: int
    prompt: int
    turn: int
    tool: int


FIXED = Case(trajectories=16, slots=8, prompt=120, turn=40, tool=40)
"""What every measured rollout is held against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    case: Case
    work: Workload


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


class CountingEngine(EmbeddedEngine):
    """Adds up what its forwards do: the terms of the cost model, as the simulator counts them."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.counted = np.zeros(len(TERMS))

    def _logits(self, rows: Sequence[Row], extras: Sequence[Extra]) -> torch.Tensor:
        filling = {extra.slot for extra in extras}
        decoding = [row for row in rows if row.slot not in filling]
        new = sum(extra.end - extra.start for extra in extras) + len(rows) - len(decoding)
        attended = sum(pairs(extra.start, extra.end - extra.start) for extra in extras)
        context = sum(len(row.ids) for row in decoding)
        self.counted += [1, len(decoding), context, new, attended]
        return super()._logits(rows, extras)


async def roll_out(engine: EmbeddedEngine, rollout: Rollout) -> None:
    """As many trajectories at once as there are slots; one that leaves hands its slot to the next in line."""
    loop = asyncio.get_running_loop()
    ids = random.Random(1)
    some = rollout.work.trajectories
    prompts = {t.group: [ids.randrange(VOCAB) for _ in range(t.prompt_tokens)] for t in some}
    line = iter(enumerate(some))

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

    async def slot(index: int, t: TrajectoryWork) -> None:
        while True:
            await one(index, t)
            follower = next(line, None)
            if follower is not None:  # before the release: decoding waits for its first request
                engine.join([follower[1].traj])
            engine.release(t.traj)
            if follower is None:
                return
            index, t = follower

    first = [taken for _, taken in zip(range(rollout.case.slots), line, strict=False)]
    engine.join([t.traj for _, t in first])
    async with asyncio.TaskGroup() as tasks:
        for index, t in first:
            tasks.create_task(slot(index, t))


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
    return simulate(work, Cluster(model=model, replicas=1), "reserve", policies=POLICIES)[1]


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


class Bench:
    """Rollouts with one model in one thread, which is the engine's alone."""

    def __init__(self, options: argparse.Namespace, thread: ThreadPoolExecutor) -> None:
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
        self._model, self._thread = Qwen3ForCausalLM(config).eval(), thread
        thread.submit(torch.set_num_threads, 1).result()

    def seconds(self, rollout: Rollout) -> float:
        """CPU time of the engine's thread."""
        spent: float = self._run(rollout, EmbeddedEngine, lambda _: time.thread_time())
        return spent

    def counted(self, rollout: Rollout) -> list[float]:
        """What the engine's forwards do, by the cost model's terms."""
        sums: list[float] = self._run(rollout, CountingEngine, lambda e: e.counted.copy()).tolist()
        return sums

    def _run(self, rollout: Rollout, kind: type[EmbeddedEngine], read: Callable[[Any], Any]) -> Any:
        """How far `read`, in the engine's thread, advances over one rollout."""
        work = rollout.work

        async def enter() -> Any:
            loop = asyncio.get_running_loop()
            engine = kind(
                self._model,
                max_running=rollout.case.slots,
                thread=self._thread,
                prefill_tokens=PREFILL_TOKENS,
                lockstep=True,
            )
            async with engine:
                await grow(engine, max(t.prompt_tokens + t.response_tokens for t in work.trajectories))
                before = await loop.run_in_executor(self._thread, read, engine)
                await roll_out(engine, rollout)
                return await loop.run_in_executor(self._thread, read, engine) - before

        return asyncio.run(enter())


def fit(table: Sequence[Sequence[float]], seconds: Sequence[float]) -> CostModel:
    """The coefficients, none below zero, whose relative errors have the least squares."""
    features_NT, seconds_N = np.array(table), np.array(seconds)
    scale_T = features_NT.max(axis=0)
    found_T, _ = nnls(features_NT / scale_T / seconds_N[:, None], np.ones(len(seconds_N)))
    values = dict(zip(TERMS, (found_T / scale_T).tolist(), strict=True))
    return CostModel(**{**values, "forward_s": max(values["forward_s"], 1e-9)}, mixed=True)


def predicted(rollouts: Sequence[Rollout], times: Sequence[Steady]) -> dict[str, Any]:
    """The model of the even-numbered rollouts, and how far off it is for the others."""
    table = [features(r.work, r.case) for r in rollouts]
    cost = fit(table[::2], [t.seconds for t in times[::2]])
    rows = []
    for k, (rollout, time_) in enumerate(zip(rollouts, times, strict=True)):
        seconds = fly(rollout.work, rollout.case, cost).makespan_s
        rows.append(
            {
                **asdict(rollout.case),
                "fitted": k % 2 == 0,
                "measured_s": time_.seconds,
                "predicted_s": seconds,
                "error": seconds / time_.seconds - 1,
                "spread": time_.spread,
                "raw_spread": time_.raw_spread,
            }
        )
    held = [row for row in rows if not row["fitted"]]
    total = sum(r["predicted_s"] for r in held) / sum(r["measured_s"] for r in held)
    return {
        "cost": asdict(cost),
        "held_out": {
            "rollouts": len(held),
            "mean_error": fmean(abs(r["error"]) for r in held),
            "worst_error": max(abs(r["error"]) for r in held),
            "error_of_sum": total - 1,
        },
        "spread": fmean(t.spread for t in times),
        "raw_spread": fmean(t.raw_spread for t in times),
        "rollouts": rows,
    }


def run(seed: int, options: argparse.Namespace, bench: Bench) -> dict[str, Any]:
    chosen = cases(options.rollouts, seed)
    rollouts = [Rollout(case=case, work=work_of(case, seed + k)) for k, case in enumerate(chosen)]
    fixed = Rollout(case=FIXED, work=work_of(FIXED, 0))
    real = np.array([bench.counted(rollout) for rollout in rollouts])  # also pays for what is lazy
    simulated = np.array([features(rollout.work, rollout.case) for rollout in rollouts])
    off = np.abs(real / simulated - 1).max(axis=0)
    with settled_garbage():
        readings = measure(
            [partial(bench.seconds, rollout) for rollout in rollouts],
            partial(bench.seconds, fixed),
            passes=options.passes,
            seed=seed,
        )
    return {
        "seed": seed,
        "composition_off": dict(zip(COUNTED, off.tolist(), strict=True)),
        **predicted(rollouts, settle(readings)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=24, help="of each seed; half of them are held out")
    parser.add_argument("--passes", type=int, default=3, help="measurements of each rollout")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[101, 201, 301])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "sim_cost_fit.json")
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    with ThreadPoolExecutor(1) as thread:
        bench = Bench(options, thread)
        seeds = [run(seed, options, bench) for seed in options.seeds]
    for one in seeds:
        for row in one["rollouts"]:
            print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
        print({k: v for k, v in one.items() if k != "rollouts"})
    bars = [
        bar(
            f"worst held-out rollout of seed {one['seed']}", one["held_out"]["worst_error"], BAR, at_most=True
        )
        for one in seeds
    ]
    return finish("fit_cost_model", {"torch": torch.__version__, "seeds": seeds}, bars, options.out)


if __name__ == "__main__":
    sys.exit(main())
