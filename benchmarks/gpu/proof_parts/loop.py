"""Loop: `rocstar train recipes/quickstart.toml`, shortened, with its tool calls in the sandbox."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from typing import Any

from report import ROOT

from .part import Part
from .results import Loop

STEPS, TOY_STEPS = 3, 1
SHORT = (
    *("--sft.steps=100", "--sft.num_demonstrations=2000", "--sft.demonstration_tasks.size=600"),
    *("--stages.0.data.size=80", "--eval.data.limit=16"),
)
TOY = (
    *("--sft.steps=3", "--sft.num_demonstrations=60", "--sft.demonstration_tasks.size=24"),
    *("--stages.0.data.size=12", "--eval.data.limit=4", "--eval.samples_per_task=1"),
    *("--rl.tasks_per_step=2", "--rl.rollouts_per_task=8", "--rl.group_size=8"),
)
KEPT = 4000
"""Characters of the output."""
RESERVED_S = 5
"""Reserved for the steps after the run."""


def measure(part: Part) -> None:
    result: Loop = part.result
    run = part.path(".run")
    shutil.rmtree(run, ignore_errors=True)
    result.asked_steps = TOY_STEPS if part.toy else STEPS
    arguments = [*(TOY if part.toy else SHORT), f"--stages.0.steps={result.asked_steps}", f"--output-dir={run}"]
    command = [sys.executable, "-m", "rocstar.train", str(ROOT / "recipes" / "quickstart.toml"), *arguments]
    part.save()
    log = part.path(".txt")
    began = time.perf_counter()
    with log.open("w") as file:
        done = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            result.exit_code = done.wait(part.left() - RESERVED_S)
        except subprocess.TimeoutExpired:
            done.kill()
    result.seconds = time.perf_counter() - began
    result.output = log.read_text(errors="replace")[-KEPT:]
    metrics = run / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    record(result, [row for row in rows if row["phase"] == "rl"])
    part.save()


def record(result: Loop, rows: list[dict[str, Any]]) -> None:
    """The figures of the RL steps."""
    result.steps = len(rows)
    result.step_s = [row["time/step"] for row in rows]
    result.rewards = [row["reward/mean"] for row in rows]
    result.tool_calls_mean = [row["tool/calls_mean"] for row in rows]
    result.tool_error_share = [row["tool/error_share"] for row in rows]
    result.generated_tokens_per_s = [row["tokens/generated"] / row["time/generate"] for row in rows]
