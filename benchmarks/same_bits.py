"""Same seed, same bits? Pairs of runs of one recipe and seed: one on the machine as it is, one on a busy one.

    python benchmarks/same_bits.py [--pairs 10] [--out FILE]

The quickstart in miniature, cold start, RL and evaluations, at the default number of torch threads. The busy
run of a pair has a busy loop on every core. Compared: the weights of every checkpoint byte by byte, every row
of metrics.jsonl but its times, every trajectory record, every evaluation; then `rocstar replay` of every step
of the busy run, whose difference must be exactly 0.
"""

from __future__ import annotations

import hashlib
import json
import shutil
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
    "--stages.0.steps=3",
    "--stages.0.data.size=60",
    "--eval.data.limit=12",
)


def train(directory: Path, seed: int, *, busy: bool) -> None:
    recipe = ROOT / "recipes" / "quickstart.toml"
    command = [sys.executable, "-m", "rocstar.train", str(recipe), f"--output-dir={directory}"]
    with taken(cores() if busy else []), directory.with_suffix(".log").open("w") as log:
        subprocess.run([*command, f"--run.seed={seed}", *MINIATURE], check=True, stdout=log, stderr=log)


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
    for file in sorted(
        [*directory.glob("evaluations/*/results.json"), *directory.glob("evaluations/*/attempts/*")]
    ):
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


def pair(folder: Path, seed: int) -> dict[str, Any]:
    for name in ("quiet", "busy"):
        train(folder / name, seed, busy=name == "busy")
    quiet, busy = contents(folder / "quiet"), contents(folder / "busy")
    different = sorted(name for name in quiet.keys() | busy.keys() if quiet.get(name) != busy.get(name))
    updates = sum(row.get("loss/policy") is not None for row in quiet["metrics"])
    return {
        "seed": seed,
        "compared": sorted(quiet),
        "different": different,
        "updates": updates,
        "replay_differences": replays(folder / "busy", 3),
    }


def main() -> int:
    parser = result_parser(__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    options = parser.parse_args()
    pairs = []
    for seed in range(options.pairs):
        folder = Path(tempfile.mkdtemp(prefix="rocstar-bits-"))
        pairs.append(pair(folder, seed))
        shutil.rmtree(folder)
        same = "same bits" if not pairs[-1]["different"] else f"DIFFERENT: {pairs[-1]['different']}"
        print(f"seed {seed}: {same}, replay off by {pairs[-1]['replay_differences']}", flush=True)
    off = max(abs(d) if d is not None else float("inf") for p in pairs for d in p["replay_differences"])
    unlike, idle = sum(bool(p["different"]) for p in pairs), sum(not p["updates"] for p in pairs)
    claims = [
        claim("pairs of a quiet and a busy run of one seed that differ in a bit", unlike, "pairs", at_most=0),
        claim("largest difference of a replayed loss from the logged one", off, at_most=0),
        claim("runs without an update", idle, "runs", at_most=0),
    ]
    return finish(
        "same_bits", {"options": MINIATURE, "pairs": pairs}, claims, options.out, seeds=range(options.pairs)
    )


if __name__ == "__main__":
    sys.exit(main())
