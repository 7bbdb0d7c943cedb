"""Whole agentic steps of rocstar against TRL's GRPOTrainer(tools=[...]): rollouts with a tool, an update.

    python benchmarks/bench_step_vs_trl.py --trl-python TRL/bin/python --run runs/quickstart

The run gives the recipe, the model (its first checkpoint) and the tasks; how to make it and the peer's
environment: docs/learner_benchmarks.md. Both sides get the same weights, prompts (token by token), tasks,
turn and token limits, 12 groups of 32, one optimizer step per 384 trajectories, no KL, float32, one core with
one thread (or --cores 0,1 with two). RoC is off, and the learning rate so small that the policy, and with it
the work, stays what it is.

rocstar is `rocstar train` with its sandbox, its records and its metrics; step times are the `time/step` that
it logs. TRL's steps are timed without its logging, with a tool that is a bare forked worker. Rounds in turn:
a run of rocstar, whose first step is not counted, then as many steps of each setting of TRL, on the same
tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench_learner import Setting, own_versions
from sandbox_bench.report import ROOT, bar, finish
from sandbox_bench.stats import median
from trl_bench.children import Child, num_threads

from rocstar.engine.record import from_record, read_records
from rocstar.engine.types import Task, Trajectory
from rocstar.sandbox.bench import table
from rocstar.train.config import Recipe, load_recipe
from rocstar.train.data import TaskCursor
from rocstar.train.model_io import load_tokenizer
from rocstar.train.preflight import chat_format, load_all_tasks

BAR, TOKENS_AGREE = 3.0, 0.05
LR = 1e-7
SETTINGS = (
    Setting(size=32, count=12, together=1),
    Setting(size=96, count=4, together=1),
    Setting(size=32, count=12, together=12),
)
PARTS = ("generate_s", "tool_s", "learn_s", "rest_s")


def overrides(options: argparse.Namespace) -> list[str]:
    """What makes the run's recipe the benchmark's."""
    siblings = options.siblings
    return [
        f"--model.path={options.run / 'checkpoints' / 'step_0'}",
        "--sft.steps=0",
        f"--run.threads={num_threads(options.cores)}",
        *("--rl.roc_mode=none", f"--rl.group_size={siblings}", f"--rl.rollouts_per_task={siblings}"),
        *(f"--rl.tasks_per_step={options.tasks}", f"--rl.lr={LR}", "--rl.num_updates_per_batch=1"),
        f"--stages.0.steps={options.steps + 1}",
        *("--eval.data.limit=1", "--eval.samples_per_task=1"),
        *options.override,
    ]


def our_steps(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """One run of `rocstar train` on the core; its steps but the first."""
    threads = str(num_threads(options.cores))
    environment = {
        **os.environ,
        **{"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"},
    }
    command = [
        *("taskset", "-c", options.cores, sys.executable, "-m", "rocstar.train"),
        *(str(options.run / "config.toml"), *overrides(options), f"--output-dir={folder}"),
    ]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"rocstar train ended with {ended.returncode}:\n{ended.stderr[-4000:]}")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row.get("phase") == "rl"][1:]
    return [our_step(row, folder / "trajectories" / f"step_{row['step']:06d}.jsonl") for row in steps]


def our_step(row: dict[str, Any], records: Path) -> dict[str, Any]:
    trajectories = [from_record(record) for record in read_records(records)]
    times = {name.removeprefix("time/"): value for name, value in row.items() if name.startswith("time/")}
    wall = times.pop("step")
    generate, tool = times.pop("generate") + times.pop("kv_wait", 0.0), times.pop("tool_wait")
    learn = times.pop("learn")
    return {
        "wall_s": wall,
        "generate_s": generate,
        "tool_s": tool,
        "learn_s": learn,
        "rest_s": wall - generate - tool - learn,
        "rest": {name: round(value, 3) for name, value in times.items()},
        "rows_trained": row["ledger/kept"],
        "updates": 1,
        **work_of(trajectories),
    }


def work_of(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    results = [result for t in trajectories for result in t.results]
    return {
        "trajectories": len(trajectories),
        "policy_tokens": sum(t.num_policy_tokens for t in trajectories),
        "response_tokens": sum(t.response_length for t in trajectories),
        "calls": len(results),
        "errors": sum(result.is_error for result in results),
        "reward_sum": sum(getattr(t.outcome, "reward", 0.0) for t in trajectories),
    }


def their_step(peer: Child) -> dict[str, Any]:
    step = peer.ask(do="step")
    step["rest_s"] = step["wall_s"] - sum(step.get(name, 0.0) for name in PARTS[:3])
    return {"tool_s": 0.0, "calls": 0, "errors": 0, **step}


def tasks_in_order(recipe: Recipe, options: argparse.Namespace) -> list[Task]:
    """TRL's tasks: those of our warm-up step, then in every round those of our other steps."""
    cursor = TaskCursor(load_all_tasks(recipe).stages[0], seed=recipe.run.seed)
    steps = [cursor.take(options.tasks) for _ in range(options.steps + 1)]
    rounds = steps[1:] * options.rounds
    return [task for step in [steps[0], *rounds] for task in step]


def write_inputs(recipe: Recipe, options: argparse.Namespace, folder: Path) -> tuple[Path, Path]:
    """What TRL's child reads: tasks with their prompts in tokens, and the limits."""
    tokenizer = load_tokenizer(recipe.model.path)
    chat = chat_format(recipe, tokenizer)
    stage = recipe.stages[0]
    tasks, settings = folder / "tasks.json", folder / "settings.json"
    tasks.write_text(
        json.dumps(
            [
                {"question": t.question, "answer": t.answer, "prompt_ids": list(chat.prompt_ids(t.question))}
                for t in tasks_in_order(recipe, options)
            ]
        )
    )
    settings.write_text(
        json.dumps(
            {
                "template": tokenizer.chat_template,
                "siblings": options.siblings,
                "max_response_tokens": stage.max_response_tokens,
                "max_turns": stage.max_turns,
                "lr": LR,
            }
        )
    )
    return tasks, settings


def measure(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    recipe = load_recipe(options.run / "config.toml", overrides(options))
    steps: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        tasks, limits = write_inputs(recipe, options, folder)
        peers = []
        for setting in SETTINGS[: options.settings]:
            size = setting.size * options.tasks * options.siblings // 384
            numbers = (size, setting.count, setting.together)
            arguments = [recipe.model.path, str(tasks), *map(str, numbers), str(limits)]
            child = Child(setting.name, options.trl_python, "trl_step.py", arguments, cores=options.cores)
            peers.append(stack.enter_context(child))
        for peer in peers:
            peer.hear()
            their_step(peer)  # not counted, as our first
        for number in range(options.rounds):
            steps.setdefault("rocstar", []).extend(our_steps(options, folder / f"run{number}"))
            for peer in peers:
                steps.setdefault(peer.name, []).extend(their_step(peer) for _ in range(options.steps))
            for side in steps:
                print(f"round {number}: {side} {[round(s['wall_s'], 2) for s in steps[side]]}", flush=True)
    return steps


def summary(side: str, steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def total(name: str) -> float:
        return float(sum(step.get(name, 0.0) for step in steps))

    wall = [step["wall_s"] for step in steps]
    count = total("trajectories")
    return {
        "side": side,
        "steps": len(steps),
        "wall_s": round(median(wall), 3),
        "wall_range_s": [round(min(wall), 3), round(max(wall), 3)],
        "trajectories_per_s": round(count / len(steps) / median(wall), 1),
        **{name: round(total(name) / len(steps), 3) for name in PARTS},
        "policy_tokens_per_trajectory": round(total("policy_tokens") / count, 2),
        "response_tokens_per_trajectory": round(total("response_tokens") / count, 2),
        "calls_per_trajectory": round(total("calls") / count, 3),
        "error_share": round(total("errors") / max(1.0, total("calls")), 3),
        "reward": round(total("reward_sum") / count, 3),
        "rows_trained": round(total("rows_trained") / len(steps), 1),
        "updates": round(total("updates") / len(steps), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trl-python", type=Path, required=True, help="Python of the peer's environment")
    parser.add_argument("--run", type=Path, required=True, help="a run of recipes/quickstart.toml")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="steps of a round")
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--siblings", type=int, default=32)
    parser.add_argument("--settings", type=int, default=len(SETTINGS), help="only TRL's first so many")
    parser.add_argument("--override", action="append", default=[], help="another option of rocstar train")
    parser.add_argument("--cores", default="1", help="of each side, with a thread for each core: 1, or 0,1")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "step_vs_trl.json")
    options = parser.parse_args()
    steps = measure(options)
    rows = [summary(side, some) for side, some in steps.items()]
    ours, peers = rows[0], rows[1:]
    best = max(peers, key=lambda row: row["trajectories_per_s"])
    names = ("side", "wall_s", "trajectories_per_s", *PARTS, "policy_tokens_per_trajectory", "rows_trained")
    print(table(names, [[row[name] for name in names] for row in rows]), end="\n\n")
    tokens = ours["policy_tokens_per_trajectory"] / best["policy_tokens_per_trajectory"]
    bars = [
        bar(
            f"trajectories/s of rocstar over TRL ({best['side']})",
            round(ours["trajectories_per_s"] / best["trajectories_per_s"], 2),
            BAR,
            at_most=False,
        ),
        bar("generated tokens, difference", round(abs(tokens - 1), 4), TOKENS_AGREE, at_most=True),
    ]
    about = {
        "versions": own_versions(options.trl_python),
        "threads": num_threads(options.cores),
        "dtype": "float32",
        "tasks_per_step": options.tasks,
        "siblings": options.siblings,
        "best_of_trl": best["side"],
        "our_rest": [step["rest"] for step in steps["rocstar"]],
    }
    return finish("step_vs_trl", {**about, "sides": rows}, bars, options.out)


if __name__ == "__main__":
    sys.exit(main())
