"""What a turn is worth: siblings branched from the middle of a trajectory, and what that costs.

    python benchmarks/experiments/turn_values.py --model runs/mine/checkpoints/step_0 --seeds 2
    python benchmarks/experiments/turn_values.py --model runs/notes/checkpoints/step_0 \\
        --also 'tools=[{kind = "jupyter"}]' --out benchmarks/results/turn_values_jupyter.json

    trajectory ──cut behind each tool response──> K continuations each ──> value = mean reward of them
                                                       value after a turn - value before it = the turn's worth

An agent's `prompt` begins a trajectory with given ids, and a tool whose interpreters are branches (by fork)
of one that has run the cells so far stands in its tool box. The value before the first turn is the mean
reward of K attempts at the task. Reported: the mean worth of turns whose calls went well and of those that
failed, with 95% intervals over tasks, and the tokens and seconds of a value beside those of a trajectory. A
task that was measured is not measured again. The programs of a recipe's tool `python` have no state and need
no session; with `jupyter` every continuation that calls it branches one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import uvloop
from arms import ROOT, write
from branched_notebook import BranchedNotebook

from rocstar.engine.progress.status import StatusLine
from rocstar.engine.rollout.rollout import Agent, run_trajectory
from rocstar.engine.types import Origin, Scored, Task, Trajectory, TrajectoryKey
from rocstar.train.evaluation.benchmarks.registry import load_tasks_of
from rocstar.train.evaluation.saved_model import last_stage, open_agent
from rocstar.train.plan.preflight import load_all_tasks
from rocstar.train.reading.analysis.statistics.cluster_bootstrap import TaskDraws, interval
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe

SEED_STEP = 1_000_000
"""The step in the keys of continuations: their noise is that of no step of a run."""


@dataclass(kw_only=True)
class Cost:
    """Of everything that was generated for values."""

    tokens: int = 0
    seconds: float = 0.0
    continuations: int = 0
    failed: int = 0
    """Of these."""
    astray: int = 0
    """Trajectories whose cells, run again, ended otherwise; what comes behind has no value."""


async def value_of(
    agent: Agent, task: Task, prefix: Sequence[int], turns: int, key: TrajectoryKey, number: int, cost: Cost
) -> float | None:
    """Mean of 1 for correct over `number` continuations of a prefix; None where all of them failed.

    turns: of the prefix; they count against the limit, as its tokens do.
    """
    limits = agent.limits
    prompt = agent.chat.prompt_ids(task.question, task.context, None)
    left = limits.max_response_tokens - (len(prefix) - len(prompt))
    continuing = replace(
        agent,
        prompt=lambda _: list(prefix),
        limits=replace(limits, max_response_tokens=left, max_turns=limits.max_turns - turns),
    )
    started = time.perf_counter()
    keys = [replace(key, step=SEED_STEP + turns, sibling=key.sibling * number + k) for k in range(number)]
    found = await asyncio.gather(*(run_trajectory(continuing, task, one) for one in keys))
    cost.seconds += time.perf_counter() - started
    cost.tokens += sum(one.num_policy_tokens for one in found)
    cost.continuations += len(found)
    scored = [float(one.outcome.is_correct) for one in found if isinstance(one.outcome, Scored)]
    cost.failed += len(found) - len(scored)
    return fmean(scored) if scored else None


async def turns_of(
    agent: Agent, task: Task, one: Trajectory, number: int, cost: Cost
) -> list[dict[str, Any]]:
    """Each turn that a tool answered, with its value before and after."""
    before = await value_of(agent, task, one.ids[: one.prompt_length].tolist(), 0, one.key, number, cost)
    ends = [s.end for s in one.segments if s.origin is Origin.tool]
    answered = [turn for turn in one.turns if turn.results][: len(ends)]
    rows: list[dict[str, Any]] = []
    async with contextlib.aclosing(BranchedNotebook(agent, one.key)) as notebook:
        for k, (turn, end) in enumerate(zip(answered, ends, strict=True), 1):
            if not await notebook.follow(turn):
                cost.astray += 1
                break
            branch_s: list[float] = []
            branching = notebook.branching(branch_s)
            after = await value_of(branching, task, one.ids[:end].tolist(), k, one.key, number, cost)
            if before is not None and after is not None:
                rows.append({
                    "task": task.id,
                    "turn": k,
                    "is_error": any(result.is_error for result in turn.results),
                    "before": before,
                    "after": after,
                    "branch_s": branch_s,
                })  # fmt: skip
            before = after
    return rows


async def measure(options: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """The tasks of a seed, each from its file where that is there."""
    recipe = load_recipe(options.recipe, [*(f"--{one}" for one in options.also), f"--run.seed={seed}"])
    stage = last_stage(recipe)
    tasks = load_all_tasks(recipe, options.model, built_in=load_tasks_of).stages[-1][: options.tasks]
    options.runs.mkdir(parents=True, exist_ok=True)
    found = []
    async with open_agent(recipe, options.model, stage.max_response_tokens, stage.max_turns) as agent:
        for number, task in enumerate(tasks):
            file = options.runs / f"seed_{seed}_task_{number}.json"
            if not file.exists():
                partial = file.with_suffix(".partial")
                partial.write_text(json.dumps(await of_task(agent, task, seed, options)))
                partial.replace(file)
            found.append(json.loads(file.read_text()))
    return found


async def of_task(agent: Agent, task: Task, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    keys = [TrajectoryKey(seed=seed, step=1, task_id=task.id, sibling=k) for k in range(options.trajectories)]
    started = time.perf_counter()
    made = await asyncio.gather(*(run_trajectory(agent, task, key) for key in keys))
    seconds, cost = time.perf_counter() - started, Cost()
    turns = [row for one in made for row in await turns_of(agent, task, one, options.continuations, cost)]
    return {
        "seed": seed,
        "task": task.id,
        "turns": turns,
        "trajectories": len(made),
        "tokens": sum(one.num_policy_tokens for one in made),
        "seconds": seconds,
        "cost": vars(cost),
    }


def worth(turns: Sequence[dict[str, Any]], is_error: bool) -> dict[str, Any]:
    """Mean of after - before, with its interval over tasks."""
    chosen = [turn for turn in turns if turn["is_error"] is is_error]
    tasks = sorted({turn["task"] for turn in chosen})
    if not tasks:
        return {"turns": 0, "tasks": 0}
    deltas = {name: [t["after"] - t["before"] for t in chosen if t["task"] == name] for name in tasks}
    sums = np.array([[sum(of_task), len(of_task)] for of_task in deltas.values()])
    drawn = TaskDraws(len(tasks), np.random.default_rng(0)).sums(sums)
    low, high = interval(drawn[:, 0] / drawn[:, 1], len(tasks))
    known = {"low": low, "high": high} if len(tasks) > 1 else {}
    mean = float(sums[:, 0].sum() / sums[:, 1].sum())
    return {"turns": len(chosen), "tasks": len(tasks), "mean": mean, **known}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a Hugging Face directory or checkpoint")
    parser.add_argument("--recipe", default=str(ROOT / "recipes" / "quickstart.toml"))
    text = "a field of the recipe, as the model learned with it; may be repeated"
    parser.add_argument("--also", action="append", default=[], metavar="FIELD=VALUE", help=text)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=24)
    parser.add_argument("--trajectories", type=int, default=4, help="of a task, whose turns are valued")
    parser.add_argument("--continuations", type=int, default=16, help="of a value")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "experiments" / "turn_values")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "turn_values.json")
    options = parser.parse_args()
    options.miniature = False
    try:
        with StatusLine(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = [one for seed in range(options.seeds) for one in runner.run(measure(options, seed))]
    except ConfigError as error:
        print(f"turn_values: {error}", file=sys.stderr)
        sys.exit(2)
    turns = [turn for one in found for turn in one["turns"]]
    branch_s = [seconds for turn in turns for seconds in turn["branch_s"]]
    cost = {name: sum(one["cost"][name] for one in found) for name in found[0]["cost"]}
    tokens, made = sum(one["tokens"] for one in found), sum(one["trajectories"] for one in found)
    told = {
        "good": worth(turns, False),
        "failing": worth(turns, True),
        "continuations_of_a_value": options.continuations,
        "trajectories": made,
        "tokens_of_a_trajectory": tokens / made,
        "seconds_of_trajectories": sum(one["seconds"] for one in found),
        "values": cost | {"tokens_over_trajectories": cost["tokens"] / tokens},
        "load_of_the_machine": os.getloadavg()[0],
        "branches": len(branch_s),
        "branch_ms": median(branch_s) * 1e3 if branch_s else None,
    }
    write(options, told | {"results": found})
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
