"""Does the quickstart learn, seed after seed? Full runs, cold start included.

    python benchmarks/quickstart_seeds.py --seeds 10 [--out FILE]

Per seed: avg@4 on the 64 held-out tasks after the cold start and at the end, the rise with its paired interval
(docs/reference/statistics.md), and the tool-error share in correct trajectories over the first and last quarter of
the steps, pooled. Runs that exist under --runs are not run again.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean

import numpy as np
from report import ROOT, claim, finish, result_parser

from rocstar.engine.record.files import record_files
from rocstar.engine.record.reading import read_records
from rocstar.train.evaluation.statistics.paired import paired_difference


def run(recipe: str, directory: Path, options: Sequence[str], ranks: int = 1) -> float:
    """Train on so many ranks unless it is done already; returns seconds (0 = was there)."""
    if is_complete(directory):
        return 0.0
    shutil.rmtree(directory, ignore_errors=True)
    started = time.monotonic()
    several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *several, "-m", "rocstar.train", recipe, "--output-dir", str(directory), *options]
    with (directory.parent / f"{directory.name}.log").open("w") as log:
        subprocess.run(command, cwd=ROOT, check=True, stdout=log, stderr=log)
    return time.monotonic() - started


def is_complete(directory: Path) -> bool:
    """Whether the run or cold start in a folder came to its end. A report may be of one that did not."""
    manifest = directory / "manifest.json"
    return manifest.exists() and json.loads(manifest.read_text())["starts"][-1]["status"] == "complete"


def rows(directory: Path, phase: str) -> list[dict]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["phase"] == phase]


def means(file: Path) -> dict[str, float]:
    """The mean reward of each task's scored attempts."""
    questions = json.loads(file.read_text())["sets"]["heldout"]["questions"]
    rewards = {name: [r for r in one["rewards"] if r is not None] for name, one in questions.items()}
    return {name: fmean(some) for name, some in rewards.items() if some}


def rise(directory: Path) -> dict:
    """Last evaluation minus first, paired by task, with its 95% interval."""
    files = sorted((directory / "evaluations").glob("step_*/results.json"))
    before, after = means(files[0]), means(files[-1])
    tasks = sorted(before.keys() & after.keys())
    found = paired_difference([[after[t] - before[t] for t in tasks]], np.random.default_rng(0))
    ends = {"start": fmean(before[t] for t in tasks), "end": fmean(after[t] for t in tasks)}
    return {**ends, "rise": found.difference, "ci_low": found.interval[0], "ci_high": found.interval[1]}


def rising(what: str, results: list[dict], least: float = 0.25) -> dict:
    """The claim that the score of every seed rises by `least`, with the interval above 0."""
    passed = sum(one["rise"] >= least and one["ci_low"] > 0 for one in results)
    text = f"{what}: seeds whose held-out avg@4 rises by {least} with the 95% interval above 0"
    return claim(text, passed, "seeds", at_least=len(results))


def tool_errors(directory: Path) -> list[tuple[int, int]]:
    """Per step: erroneous and all executed calls of the correct trajectories."""
    out = []
    for path in record_files(directory / "trajectories").values():
        correct = [record for record in read_records(path) if record["outcome"].get("reward") == 1.0]
        calls = [call for record in correct for turn in record["turns"] for call in turn["calls"]]
        executed = [call["is_error"] for call in calls if call["status"] != "not_executed"]
        out.append((sum(executed), len(executed)))
    return out


def main() -> int:
    parser = result_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--recipe", default="recipes/quickstart.toml")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "quickstart_seeds")
    parser.add_argument("--at-once", type=int, default=2, help="runs at a time, one thread each")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)

    def one(seed: int) -> dict:
        directory = options.runs / f"seed_{seed}"
        seconds = run(options.recipe, directory, [f"--run.seed={seed}", "--run.threads=1"])
        calls = tool_errors(directory)
        quarter = len(calls) // 4
        result = {"seed": seed, "wall_s": seconds, **rise(directory)}
        result["first_quarter"], result["last_quarter"] = calls[:quarter], calls[-quarter:]
        print(f"seed {seed}: {result['start']:.2f} -> {result['end']:.2f}", flush=True)
        return result

    with ThreadPoolExecutor(options.at_once) as pool:
        results = list(pool.map(one, range(options.seeds)))

    def pooled(name: str) -> float:
        return sum(e for r in results for e, _ in r[name]) / sum(c for r in results for _, c in r[name])

    claims = [
        rising("quickstart", results),
        claim("quickstart: mean held-out avg@4 at the start", fmean(r["start"] for r in results)),
        claim("quickstart: mean held-out avg@4 at the end", fmean(r["end"] for r in results)),
        claim("quickstart: tool errors in correct trajectories, first quarter", pooled("first_quarter")),
        claim("quickstart: tool errors in correct trajectories, last quarter", pooled("last_quarter")),
    ]
    return finish("quickstart_seeds", {"results": results}, claims, options.out, seeds=range(options.seeds))


if __name__ == "__main__":
    sys.exit(main())
