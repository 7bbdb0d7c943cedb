"""Compare pairs of runs of one recipe and seed: their bits and their times.

    python benchmarks/same_bits.py [--pairs 10] [--out FILE]
    python benchmarks/same_bits.py --against TREE [--pairs 4] [--steps 10] [--out FILE]

The quickstart in miniature, cold start, RL and evaluations, at the default number of torch threads. The
second run of a pair has a busy loop on every core or, with --against, the code of another tree (a built
checkout). Compared: the weights of every checkpoint byte by byte, every row of metrics.jsonl but its times,
every trajectory record, every evaluation; then `rocstar replay` of every step of the second run, whose
difference must be exactly 0. With --against the order alternates, and the result has the ratios of CPU and
times of this tree over those of the other.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hogs import cores, taken
from report import ROOT, claim, finish, result_parser

from rocstar.engine.record.reading import export_lines

MINIATURE = (
    "--sft.steps=200",
    "--sft.num_demonstrations=2000",
    "--sft.demonstration_tasks.size=400",
    "--stages.0.data.size=60",
    "--eval.data.limit=12",
)


TIMES = {
    "time/step": "time of a step",
    "time/learn": "time of the updates of a step",
    "time/generate": "time of decoding in a step",
    "time/tool_wait": "time of tool calls in a step",
}


def children_cpu_s() -> float:
    """Return the CPU seconds of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def train(directory: Path, seed: int, steps: int, *, busy: bool = False, tree: Path = ROOT) -> float:
    """Train with the code of a tree, which child processes import too; return the CPU seconds."""
    link = directory.with_suffix(".path")
    link.mkdir()
    (link / "rocstar").symlink_to(tree)
    command = [sys.executable, "-m", "rocstar.train", str(ROOT / "recipes" / "quickstart.toml")]
    options = [f"--output-dir={directory}", f"--run.seed={seed}", f"--stages.0.steps={steps}", *MINIATURE]
    environment = {**os.environ, "PYTHONPATH": str(link)}
    before = children_cpu_s()
    with directory.with_suffix(".log").open("w") as log, taken(cores() if busy else []):
        subprocess.run([*command, *options], check=True, stdout=log, stderr=log, env=environment)
        return children_cpu_s() - before


def contents(directory: Path) -> dict[str, Any]:
    """The content that must be equal, by name."""
    found: dict[str, Any] = {}
    for file in sorted(directory.glob("checkpoints/*/model.safetensors")):
        found[f"weights of {file.parent.name}"] = hashlib.sha256(file.read_bytes()).hexdigest()
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    found["metrics"] = [{k: v for k, v in row.items() if not k.startswith("time")} for row in rows]
    # Frames lie in the order in which groups ended, which is timing: their content is compared.
    with tempfile.TemporaryDirectory() as lines:
        for file in export_lines(directory / "trajectories", Path(lines)):
            told = [json.loads(line) for line in file.read_bytes().splitlines()]
            text = json.dumps([{k: v for k, v in one.items() if k != "times"} for one in told])
            found[f"records {file.name}"] = hashlib.sha256(text.encode()).hexdigest()
    for file in sorted([*directory.glob("evaluations/*/results.json"), *directory.glob("evaluations/*/attempts/*")]):
        found[f"evaluation {file.relative_to(directory)}"] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def replays(directory: Path, steps: int) -> list[float | None]:
    """The difference of each step's loss, computed again, to the logged one."""
    found = []
    for step in range(1, steps + 1):
        code = "import sys; from rocstar.train.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", code, "replay", str(directory), f"--step={step}", "--json"]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found.append(json.loads(printed)["difference"])
    return found


def times(directory: Path) -> dict[str, float]:
    """Return the median over the RL steps of each time, seconds."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "time/learn" in row]
    return {name: statistics.median(row[name] for row in steps) for name in TIMES}


def pair(folder: Path, seed: int, steps: int, against: Path | None) -> dict[str, Any]:
    first, second = folder / "first", folder / "second"
    runs = [(first, {}), (second, {"busy": True} if against is None else {"tree": against})]
    cpu_s = {}
    for directory, how in runs if against is None or seed % 2 else reversed(runs):
        cpu_s[directory] = train(directory, seed, steps, **how)
    one, other = contents(first), contents(second)
    different = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    found = {
        "seed": seed,
        "compared": sorted(one),
        "different": different,
        "updates": sum(row.get("loss/policy") is not None for row in one["metrics"]),
        "replay_differences": replays(second, steps),
    }
    if against is not None:
        here, there = times(first), times(second)
        ratios = {name: here[name] / there[name] for name in TIMES}
        ratios["cpu"] = cpu_s[first] / cpu_s[second]
        found["ratios"] = {name: round(ratio, 4) for name, ratio in ratios.items()}
    return found


def main() -> int:
    parser = result_parser(__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=3, help="RL steps of a run")
    parser.add_argument("--against", type=Path, metavar="TREE", help="a built checkout of another commit")
    options = parser.parse_args()
    against = options.against and options.against.resolve()
    pairs = []
    for seed in range(options.pairs):
        folder = Path(tempfile.mkdtemp(prefix="rocstar-bits-"))
        pairs.append(pair(folder, seed, options.steps, against))
        shutil.rmtree(folder)
        same = "same bits" if not pairs[-1]["different"] else f"DIFFERENT: {pairs[-1]['different']}"
        ratios = pairs[-1].get("ratios", "")
        print(f"seed {seed}: {same}, replay off by {pairs[-1]['replay_differences']} {ratios}", flush=True)
    off = max(abs(d) if d is not None else float("inf") for p in pairs for d in p["replay_differences"])
    unlike, idle = sum(bool(p["different"]) for p in pairs), sum(not p["updates"] for p in pairs)
    kind = "a quiet and a busy run" if against is None else "runs of two trees"
    claims = [
        claim(f"pairs of {kind} of one seed that differ in a bit", unlike, "pairs", at_most=0),
        claim("largest difference of a replayed loss from the logged one", off, at_most=0),
        claim("runs without an update", idle, "runs", at_most=0),
    ]
    if against is not None:
        for name, what in {"cpu": "CPU of a run", **TIMES}.items():
            ratio = statistics.median(p["ratios"][name] for p in pairs)
            claims.append(claim(f"{what} over that of {against.name}, median", ratio, at_most=1.03))
    made = {"options": MINIATURE, "steps": options.steps, "pairs": pairs}
    return finish("same_bits", made, claims, options.out, seeds=range(options.pairs))


if __name__ == "__main__":
    sys.exit(main())
