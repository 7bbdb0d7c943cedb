"""Whole agentic steps of rocstar against TRL's GRPOTrainer(tools=[...]): rollouts with a tool, an update.

    python benchmarks/bench_step_vs_trl.py --trl-python TRL/bin/python --run runs/quickstart

The run gives the recipe, the model (its first checkpoint) and the tasks; the peer's environment has the same
torch, with trl, transformers and accelerate. Both sides get the same weights, prompts (token by token),
tasks, turn and token limits, 12 groups of 32, one optimizer step per 384 trajectories, no KL, float32, the
same cores. RoC is off, and the learning rate so small that the policy, and with it the work, stays the same.

rocstar is `rocstar train` with its sandbox, its records and its metrics; step times are the `time/step` that
it logs. On one core it rolls out and learns in turns, as the recipe says; on two also with rollouts one step
ahead (`rl.max_staleness` 1), which decode while it learns. TRL's steps are timed without its logging, with a
tool that is a bare forked worker.
Rounds in turn: a run of rocstar, then as many steps of each setting of TRL, on the same tasks. The first
`--warm` steps of every process are not counted, nor the last one of our runs, which rolls nothing out ahead.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from report import claim, finish, result_parser
from trl_bench.children import Child, num_threads

from rocstar.engine.record.json_record import from_record
from rocstar.engine.record.reading import read_records
from rocstar.engine.types import Task, Trajectory
from rocstar.train.groups.task_cursor import TaskCursor
from rocstar.train.learner.model_io import load_tokenizer
from rocstar.train.plan.preflight import load_all_tasks
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.load import load_recipe
from rocstar.train.record.run_directory import records_file
from rocstar.train.tasks.chat_format import chat_format

BARS, UPDATE_BAR, TOKENS_AGREE = {1: 4.0, 2: 5.0}, 1.8, 0.05
"""The first by the cores of each side."""
LR = 1e-7


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How TRL cuts the rows: batches of `size`, `count` of them per update, padded over `together`."""

    size: int
    count: int
    together: int

    @property
    def name(self) -> str:
        return f"bs {self.size} ga {self.count} spg {self.together}"


BEST = Setting(size=32, count=12, together=1)
SETTINGS = (BEST, Setting(size=96, count=4, together=1), Setting(size=32, count=12, together=12))
PARTS = ("generate_s", "tool_s", "learn_s", "rest_s")
FREE = ("--engine.deterministic=false", "--run.threads=1")
"""With a core for the tools: decoding waits for none of them."""


def our_ways(cores: str) -> dict[str, tuple[str, ...]]:
    """How rocstar runs on these cores: names and options of the recipe."""
    if num_threads(cores) == 1:
        return {"rocstar": ()}
    return {"rocstar": FREE, "rocstar ahead": (*FREE, "--rl.max_staleness=1")}


def overrides(options: argparse.Namespace) -> list[str]:
    """Options that turn the recipe of the run into that of the benchmark."""
    siblings = options.siblings
    return [
        f"--model.path={options.run / 'checkpoints' / 'step_0'}",
        "--sft.steps=0",
        f"--run.threads={num_threads(options.cores)}",
        *("--rl.roc_mode=none", f"--rl.group_size={siblings}", f"--rl.rollouts_per_task={siblings}"),
        *(f"--rl.tasks_per_step={options.tasks}", f"--rl.lr={LR}", "--rl.num_updates_per_batch=1"),
        f"--stages.0.steps={options.warm + options.steps + 1}",
        *("--eval.data.limit=1", "--eval.samples_per_task=1"),
    ]


def our_steps(options: argparse.Namespace, folder: Path, way: Sequence[str]) -> list[dict[str, Any]]:
    """One run of `rocstar train` on the cores; the steps of it that count."""
    threads = str(num_threads(options.cores))
    environment = {**os.environ, **{"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"}}
    command = [
        *("taskset", "-c", options.cores, sys.executable, "-m", "rocstar.train"),
        *(str(options.run / "config.toml"), *overrides(options), *way, f"--output-dir={folder}"),
    ]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"rocstar train ended with {ended.returncode}:\n{ended.stderr[-4000:]}")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row.get("phase") == "rl"][options.warm : -1]
    return [
        our_step(row, [from_record(record) for record in read_records(records_file(folder, row["step"]))])
        for row in steps
    ]


def our_step(row: dict[str, Any], trajectories: Sequence[Trajectory]) -> dict[str, Any]:
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
    """TRL's tasks: those of our warm-up steps, then in every round those of our other steps."""
    cursor = TaskCursor(load_all_tasks(recipe).stages[0], seed=recipe.run.seed)
    steps = [cursor.take(options.tasks) for _ in range(options.warm + options.steps)]
    rounds = steps[options.warm :] * options.rounds
    return [task for step in [*steps[: options.warm], *rounds] for task in step]


def write_inputs(recipe: Recipe, options: argparse.Namespace, folder: Path) -> tuple[Path, Path]:
    """Write the files of TRL's children: tasks with their prompts in tokens, and the limits."""
    tokenizer = load_tokenizer(recipe.model.path)
    chat = chat_format(recipe, tokenizer)
    stage = recipe.stages[0]
    tasks, settings = folder / "tasks.json", folder / "settings.json"
    asked = [(task, chat.prompt_ids(task.question, task.context)) for task in tasks_in_order(recipe, options)]
    tasks.write_text(
        json.dumps([{"question": t.question, "answer": t.answer, "prompt_ids": list(ids)} for t, ids in asked])
    )
    limits = {"max_response_tokens": stage.max_response_tokens, "max_turns": stage.max_turns, "lr": LR}
    template = {"template": tokenizer.chat_template, "siblings": options.siblings}
    settings.write_text(json.dumps(template | limits))
    return tasks, settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One way of running TRL."""

    setting: Setting
    threads: int

    @property
    def name(self) -> str:
        return f"{self.setting.name} threads {self.threads}"


def peers_of(options: argparse.Namespace) -> list[Peer]:
    """TRL's settings with a thread for each core, its best known one also with one."""
    all_threads = num_threads(options.cores)
    found = [Peer(setting=setting, threads=all_threads) for setting in SETTINGS]
    if all_threads > 1:
        found.insert(1, Peer(setting=BEST, threads=1))
    return found


def measure(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    recipe = load_recipe(options.run / "config.toml", overrides(options))
    steps: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        tasks, limits = write_inputs(recipe, options, folder)
        children = []
        for peer in peers_of(options):
            setting = peer.setting
            size = setting.size * options.tasks * options.siblings // 384
            numbers = (size, setting.count, setting.together)
            arguments = [recipe.model.path, str(tasks), *map(str, numbers), str(limits)]
            child = Child(
                *(peer.name, options.trl_python, "trl_step.py", arguments), cores=options.cores, threads=peer.threads
            )
            children.append(stack.enter_context(child))
        for child in children:
            child.hear()
            for _ in range(options.warm):
                their_step(child)
        for number in range(options.rounds):
            for side, way in our_ways(options.cores).items():
                place = folder / f"{side.replace(' ', '_')}{number}"
                steps.setdefault(side, []).extend(our_steps(options, place, way))
            for child in children:
                steps.setdefault(child.name, []).extend(their_step(child) for _ in range(options.steps))
            for side in steps:
                print(f"round {number}: {side} {[round(s['wall_s'], 2) for s in steps[side]]}", flush=True)
    return steps


def summary(side: str, steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def total(name: str) -> float:
        return float(sum(step.get(name, 0.0) for step in steps))

    wall = [step["wall_s"] for step in steps]
    mean = sum(wall) / len(wall)  # steps ahead are short and long in turn: their median would be luck
    count = total("trajectories")
    return {
        "side": side,
        "steps": len(steps),
        "wall_s": round(mean, 3),
        "wall_range_s": [round(min(wall), 3), round(max(wall), 3)],
        "trajectories_per_s": round(count / len(steps) / mean, 1),
        **{name: round(total(name) / len(steps), 3) for name in PARTS},
        "policy_tokens_per_trajectory": round(total("policy_tokens") / count, 2),
        "response_tokens_per_trajectory": round(total("response_tokens") / count, 2),
        "calls_per_trajectory": round(total("calls") / count, 3),
        "error_share": round(total("errors") / max(1.0, total("calls")), 3),
        "reward": round(total("reward_sum") / count, 3),
        "rows_trained": round(total("rows_trained") / len(steps), 1),
        "updates": round(total("updates") / len(steps), 1),
    }


def is_our(row: dict[str, Any]) -> bool:
    return str(row["side"]).startswith("rocstar")


def fastest(rows: Sequence[dict[str, Any]], *, is_ours: bool) -> dict[str, Any]:
    """The fastest way of rocstar, or of TRL."""
    return max((row for row in rows if is_our(row) == is_ours), key=lambda row: row["trajectories_per_s"])


def apart(row: dict[str, Any], peer: dict[str, Any]) -> float:
    """How much more or less a side's policy writes, as a share of the peer's."""
    tokens = "policy_tokens_per_trajectory"
    return round(abs(row[tokens] / peer[tokens] - 1), 4)


def main() -> int:
    parser = result_parser(__doc__)
    parser.add_argument("--trl-python", type=Path, required=True, help="Python of the peer's environment")
    parser.add_argument("--run", type=Path, required=True, help="a run of recipes/quickstart.toml")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=int, default=3, help="first steps of each process that do not count")
    parser.add_argument("--steps", type=int, default=4, help="steps of a round that count")
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--siblings", type=int, default=32)
    parser.add_argument("--cores", default="1", help="of each side: 1, or 0,1")
    options = parser.parse_args()
    steps = measure(options)
    rows = [summary(side, some) for side, some in steps.items()]
    ours, best = fastest(rows, is_ours=True), fastest(rows, is_ours=False)
    for row in rows:
        print(row)
    speed = "trajectories_per_s"
    plain = next(row for row in rows if row["side"] == "rocstar")
    faster = round(ours[speed] / best[speed], 2)
    update = round(best["learn_s"] / plain["learn_s"], 2)
    claims = [
        claim(
            "trajectories per second of a whole agentic step over TRL's best setting",
            faster,
            at_least=BARS[num_threads(options.cores)],
        ),
        claim("time of TRL's update over rocstar's in that step", update, at_least=UPDATE_BAR),
        claim("difference of generated tokens of both sides", apart(ours, best), at_most=TOKENS_AGREE),
    ]
    ratios = {
        row["side"]: {peer["side"]: round(row[speed] / peer[speed], 2) for peer in rows if not is_our(peer)}
        for row in rows
        if is_our(row)
    }
    about = {
        "versions": own_versions(options.trl_python),
        "cores": num_threads(options.cores),
        "ratios": ratios,
        "dtype": "float32",
        "tasks_per_step": options.tasks,
        "siblings": options.siblings,
        "best_of_trl": best["side"],
    }
    return finish("step_vs_trl", {**about, "sides": rows}, claims, options.out)


def own_versions(python: Path) -> dict[str, str]:
    """The packages of the peer's environment. RuntimeError if its torch is another."""
    code = "import json, importlib.metadata as m; print(json.dumps({n: m.version(n) for n in %r}))"
    names = ("torch", "transformers", "accelerate", "trl")
    out = subprocess.run([str(python), "-c", code % (names,)], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(out.stdout)
    if found["torch"].partition("+")[0] != torch.__version__.partition("+")[0]:
        raise RuntimeError(f"the peer has torch {found['torch']}, rocstar has {torch.__version__}")
    return found


if __name__ == "__main__":
    sys.exit(main())
