"""Does a run that is killed again and again end with the same weights? kill -9 from outside, then --resume.

    python benchmarks/kill_resume.py [--out FILE]

One cold start (or --model); from its model one uninterrupted run, and one that is killed at random moments,
some of them while a checkpoint is being written: its .partial folder is there when the process is dead. Both
decode in lockstep with one torch thread. Compared bit by bit: the last weights, and every row of
metrics.jsonl but its times. The folder --runs is emptied first.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from report import ROOT, claim, finish, result_parser

Start = Callable[[bool], subprocess.Popen]
"""Starts the run; true = with --resume."""
POLL_S = 0.002
RECIPE = "recipes/quickstart.toml"


def partials(directory: Path) -> set[str]:
    return {path.name for path in (directory / "checkpoints").glob("*.partial")}


def last_step(directory: Path) -> int:
    """The last RL step in metrics.jsonl, whose last line may be torn."""
    path = directory / "metrics.jsonl"
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    steps = [0]
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        steps.append(row["step"] if row["phase"] == "rl" else 0)
    return max(steps)


def has_ended(process: subprocess.Popen, wait_s: float) -> bool:
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def kill(process: subprocess.Popen, directory: Path) -> dict:
    """kill -9; return the state of the run after it."""
    process.send_signal(signal.SIGKILL)
    process.wait()
    return {
        "step": last_step(directory),
        "inside_write": bool(partials(directory)),
        "half_written": sorted(partials(directory)),
    }


def kill_after(process: subprocess.Popen, directory: Path, delay_s: float, *, last: int) -> dict | None:
    """Kill when the time is over, or when step `last` is logged, for later kills need steps as well.

    None if the run ended by itself before.
    """
    started = time.monotonic()
    while time.monotonic() - started < delay_s and last_step(directory) < last:
        if has_ended(process, 10 * POLL_S):
            return None
    return kill(process, directory) | {"after_s": round(time.monotonic() - started, 3)}


def kill_in_write(process: subprocess.Popen, directory: Path, above: int) -> dict | None:
    """Wait for the write of a checkpoint above step `above`, and kill inside it."""
    wanted: Callable[[str], bool] = lambda name: int(name[len("step_") : -len(".partial")]) > above  # noqa: E731
    while not any(map(wanted, partials(directory))):
        if has_ended(process, POLL_S):
            return None
    return kill(process, directory) | {"waited_for": "a write"}


def run_killed(
    start: Start, directory: Path, *, steps: int, kills: int, in_write: int, span_s: float, rng: random.Random
) -> Iterator[dict]:
    """Start, kill, resume, ... until `kills` kills, `in_write` of them inside a write; then let it end.

    A kill that should have been inside a write and came too late is tried again in the next life.
    """
    inside = done = 0
    every = max(1, kills // max(1, in_write))
    while done < kills or inside < in_write:
        process = start((directory / "metrics.jsonl").exists())
        if inside < in_write and (done % every == every - 1 or done >= kills):
            found = kill_in_write(process, directory, above=last_step(directory))
        else:
            left = (steps - last_step(directory)) // (kills - done + 1)
            last = last_step(directory) + max(1, left)
            found = kill_after(process, directory, rng.uniform(0.0, span_s), last=last)
        if found is None:
            return
        done, inside = done + 1, inside + found["inside_write"]
        yield found
    process = start((directory / "metrics.jsonl").exists())
    process.wait()


def differences(directory: Path, expected: Path, step: int) -> dict:
    """The differences in bits: names of weights, and numbers of rows of metrics; steps with an update."""
    from safetensors.torch import load_file

    weights, others = (
        load_file(d / "checkpoints" / f"step_{step}" / "model.safetensors") for d in (directory, expected)
    )
    names = sorted(weights.keys() ^ others.keys())
    names += [n for n in sorted(weights.keys() & others.keys()) if not weights[n].equal(others[n])]
    rows, wanted = (untimed(d / "metrics.jsonl") for d in (directory, expected))
    lines = [k for k, (a, b) in enumerate(zip(rows, wanted, strict=False)) if a != b]
    num_updates = sum(row.get("loss/policy") is not None for row in wanted)
    return {"weights": names, "rows": lines, "num_rows": [len(rows), len(wanted)], "num_updates": num_updates}


def untimed(path: Path) -> list[dict]:
    """Rows without their times."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time")} for row in rows]


def main() -> int:
    parser = result_parser(__doc__)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "kill_resume")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--in-write", type=int, default=2, help="kills inside a checkpoint write, at least")
    parser.add_argument("--model", help="begin with this Hugging Face directory instead of a cold start")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    shutil.rmtree(options.runs, ignore_errors=True)
    options.runs.mkdir(parents=True)
    base, whole, killed = (options.runs / name for name in ("base", "whole", "killed"))
    common = ["--run.threads=1", "--engine.deterministic=true"]

    def command(directory: Path, *more: str) -> list[str]:
        train = [sys.executable, "-m", "rocstar.train", RECIPE, f"--output-dir={directory}"]
        return [*train, *common, *more]

    log = (options.runs / "log").open("w")
    if not options.model:
        cold = command(base, "--stages.0.steps=0")
        subprocess.run(cold, cwd=ROOT, check=True, stdout=log, stderr=log)
    model = f"--model.path={options.model or base / 'checkpoints' / 'step_0'}"
    rest = [model, "--sft.steps=0", f"--stages.0.steps={options.steps}", "--checkpoint.every=1"]
    started = time.monotonic()
    subprocess.run(command(whole, *rest), cwd=ROOT, check=True, stdout=log, stderr=log)
    whole_s = time.monotonic() - started

    def start(resume: bool) -> subprocess.Popen:
        more = [*rest, "--resume"] if resume else rest
        return subprocess.Popen(command(killed, *more), cwd=ROOT, stdout=log, stderr=log)

    # A life is as long as a start and about three steps, so that all kills come before the end.
    rows = untimed(whole / "metrics.jsonl")
    timed = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    step_s = sum(row.get("time/step", 0.0) for row in timed) / max(1, sum(row["phase"] == "rl" for row in rows))
    span_s = max(8.0, whole_s - options.steps * step_s) + 3 * step_s
    kills = []
    for found in run_killed(
        start,
        killed,
        steps=options.steps,
        kills=options.kills,
        in_write=options.in_write,
        span_s=span_s,
        rng=random.Random(options.seed),
    ):
        kills.append(found)
        print(found, file=sys.stderr, flush=True)
    found = differences(killed, whole, options.steps)
    differ = len(found["weights"]) + len(found["rows"]) + abs(found["num_rows"][0] - found["num_rows"][1])
    inside = sum(kill["inside_write"] for kill in kills)
    claims = [
        claim("weights and metric rows that differ after kills and resumes", differ, "items", at_most=0),
        claim("kills of that run", len(kills), "kills", at_least=options.kills),
        claim("kills while a checkpoint was written", inside, "kills", at_least=options.in_write),
        claim("updates of that run", found["num_updates"], "updates", at_least=1),
    ]
    result = {"steps": options.steps, "kills": kills, "different": found}
    return finish("kill_resume", result, claims, options.out, seeds=[options.seed])


if __name__ == "__main__":
    sys.exit(main())
