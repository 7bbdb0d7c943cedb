"""Are the hot paths as fast as they were? This rocstar against another installation, in turns in one run.

    python benchmarks/before_after.py --before ../earlier/.venv/bin/python --rounds 5

Per round each of the two, in turns, measures
- CPU of the whole process tree per `print(1)` in the sandbox (`rocstar sandbox bench`),
- tokens per second of the learner's updates, tokens per second of decoding, and the seconds of a whole step,
  over the RL steps of the quickstart in miniature.
Both read what they write about themselves, so nothing here imports either. The machine should be idle; with
`--prints-only`, which counts CPU alone, it need not be.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from sandbox_bench.report import bar, finish

MINIATURE = (
    "--sft.steps=200",
    "--sft.num_demonstrations=2000",
    "--stages.0.steps=6",
    "--eval.samples_per_task=1",
    "--checkpoint.every=0",
)
WARM = 1
"""Steps of a run that are left out: the first one compiles and fills caches."""


def sandbox(python: str, seconds: float) -> float:
    """CPU milliseconds per `print(1)`."""
    rocstar = Path(python).with_name("rocstar")
    command = [rocstar, "sandbox", "bench", "--stdlib-only", "--json", f"--seconds={seconds}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rows = json.loads(done.stdout)["rows"]
    return float(next(row["cpu_ms_per_call"] for row in rows if "print" in row["name"]))


def own_recipe(python: str) -> str:
    """The quickstart that this installation ships: recipes of two commits may differ in form."""
    program = "import rocstar.train as t; print(t.__path__[0] + '/recipes/quickstart.toml')"
    done = subprocess.run([python, "-P", "-c", program], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def training(python: str, seed: int) -> dict[str, float]:
    """Of the steps of a run in miniature; updates are those of steps with something to learn."""
    with tempfile.TemporaryDirectory(prefix="rocstar-before-") as folder:
        directory = Path(folder) / "run"
        recipe = own_recipe(python)
        command = [python, "-P", "-m", "rocstar.train", str(recipe), f"--output-dir={directory}"]
        subprocess.run(
            [*command, f"--run.seed={seed}", *MINIATURE], check=True, cwd=folder, capture_output=True
        )
        rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row.get("phase") == "rl"][WARM:]
    learned = [row for row in steps if "tokens/loss" in row]
    return {
        "update tokens/s": sum(row["tokens/loss"] for row in learned)
        / sum(row["time/learn"] for row in learned),
        "decode tokens/s": median(row["tokens/generated"] / row["time/generate"] for row in steps),
        "steps/s": median(1 / row["time/step"] for row in steps),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--before", required=True, metavar="PYTHON", help="an interpreter with another rocstar"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each sandbox measurement")
    parser.add_argument("--prints-only", action="store_true", help="no training")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    arms = {"before": options.before, "after": sys.executable}
    found: dict[str, dict[str, list[float]]] = {name: {} for name in arms}
    for k in range(options.rounds):
        order = list(arms.items())[:: 1 if k % 2 == 0 else -1]
        for name, python in order:
            values = {"prints per CPU second": 1000 / sandbox(python, options.seconds)}
            if not options.prints_only:
                values |= training(python, k)
            for what, value in values.items():
                found[name].setdefault(what, []).append(round(value, 3))
            print(name, {what: round(value, 1) for what, value in values.items()}, flush=True)
    ratios = {
        what: median(b / a for a, b in zip(found["before"][what], found["after"][what], strict=True))
        for what in found["before"]
    }
    result: dict[str, Any] = {**found, "after_over_before": ratios}
    bars = [bar(f"{what}, after over before", ratio, 0.97, at_most=False) for what, ratio in ratios.items()]
    return finish("before_after", result, bars, options.out)


if __name__ == "__main__":
    sys.exit(main())
