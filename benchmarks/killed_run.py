"""A run that is killed inside its rollouts and started again: what the benchmarks that do so share.

cold start (or --model) ──> base/checkpoints/step_0 ──> the runs that are compared, from these weights
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

sys.path.insert(0, str(Path(__file__).parent))
from quickstart_seeds import ROOT

Start = Callable[[bool], subprocess.Popen]
"""Starts the run; true = with --resume."""
SIBLINGS, GROUPS = 8, 6
SMALL = (
    f"--rl.tasks_per_step={GROUPS}",
    f"--rl.rollouts_per_task={SIBLINGS}",
    "--rl.group_size=4",
    f"--engine.max_running={SIBLINGS}",
    "--engine.deterministic=true",
    "--run.threads=1",
    "--tool.wall_s=60.0",
    "--eval.samples_per_task=1",
    "--eval.data.limit=4",
)
"""Six groups of eight siblings. What decodes together is a group, which is taken together or not at all."""
COLD = ("--sft.steps=200", "--sft.num_demonstrations=2000", "--sft.demonstration_tasks.size=400")


def parsed(description: str, *, name: str, steps: int) -> argparse.Namespace:
    """The options of such a benchmark; what lies under --runs is removed."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="recipes/quickstart.toml")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / name)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--every", type=int, default=3, help="steps between checkpoints")
    parser.add_argument("--model", help="begin with this Hugging Face directory instead of a cold start")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / f"{name}.json")
    options = parser.parse_args()
    shutil.rmtree(options.runs, ignore_errors=True)
    options.runs.mkdir(parents=True)
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """Starts `rocstar train` with the same settings, again and again."""

    options: argparse.Namespace
    settings: tuple[str, ...]
    log: TextIO

    def begin(self) -> list[str]:
        """What every run is given that begins with the same weights, which a cold start makes first."""
        model, base = self.options.model, self.options.runs / "base"
        if not model:
            self.run(base, *COLD, "--stages.0.steps=0")
        length = [f"--stages.0.steps={self.options.steps}", f"--checkpoint.every={self.options.every}"]
        return [f"--model.path={model or base / 'checkpoints' / 'step_0'}", "--sft.steps=0", *length]

    def run(self, directory: Path, *more: str) -> None:
        """One run to its end."""
        command = self._command(directory, *more)
        subprocess.run(command, cwd=ROOT, check=True, stdout=self.log, stderr=self.log)

    def starting(self, directory: Path, more: list[str]) -> Start:
        """What starts the run in a directory, or resumes it."""

        def start(resume: bool) -> subprocess.Popen:
            command = self._command(directory, *more, *(["--resume"] if resume else []))
            return subprocess.Popen(command, cwd=ROOT, stdout=self.log, stderr=self.log)

        return start

    def _command(self, directory: Path, *more: str) -> list[str]:
        train = [sys.executable, "-m", "rocstar.train", self.options.recipe, f"--output-dir={directory}"]
        return [*train, *self.settings, *more]
