"""Two learner processes against one: are the policy losses of the first steps the same?

    python benchmarks/torchrun_parity.py --out benchmarks/results/torchrun_parity.json

Runs `torchrun --nproc-per-node=2 -m rocstar.train recipes/quickstart.toml` and the same recipe in one
process, cold start and live rollouts included, same seed, and compares `loss/policy` step by step.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from quickstart_seeds import ROOT, machine, rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="recipes/quickstart.toml")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "torchrun_parity")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "torchrun_parity.json")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={options.ranks}"]
    starts = {"one": [sys.executable], "several": torchrun}
    losses, rewards = {}, {}
    for name, start in starts.items():
        directory = options.runs / name
        if not (directory / "report.html").exists():
            command = [*start, "-m", "rocstar.train", options.recipe, f"--output-dir={directory}"]
            subprocess.run([*command, f"--stages.0.steps={options.steps}"], cwd=ROOT, check=True)
        steps = rows(directory, "rl")
        losses[name] = [row["loss/policy"] for row in steps]
        rewards[name] = [row["reward/mean"] for row in steps]
    worst = max(abs(a - b) for a, b in zip(losses["one"], losses["several"], strict=True))
    summary = {
        "machine": machine(),
        "command": " ".join(["python", *sys.argv]),
        "ranks": options.ranks,
        "largest_difference": worst,
        "losses": losses,
        "rewards": rewards,
    }
    options.out.write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
