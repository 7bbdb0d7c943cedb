"""Questions of the court on one GPU, side by side, until a budget of seconds is spent.

    python benchmarks/gpu/court.py --runs DIR --out DIR [--budget 480] [--at-once 12] [QUESTION.toml ...]

Without questions, those of SmolLM2. The folder of --out gets the result and the log of each question, and runs.tar.gz
with the small files of the runs that ended: `python -m benchmarks.court` goes on from them on any machine.

Exit code 0: every question has its result. 1: not so. 2: the arguments are wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
QUESTIONS = ROOT / "benchmarks" / "court" / "questions"
DEFAULT = [QUESTIONS / "smollm2_long.toml", QUESTIONS / "smollm2_roc.toml"]
"""The longest first."""
SMALL = ("curve.json", "metrics.jsonl", "manifest.json", "config.toml", "spent.jsonl")
STOP_S = 10.0
ENVIRONMENT = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "HF_HUB_OFFLINE": "1"}
"""The process whose forks train may not open the device itself; nothing is downloaded."""


def start(question: Path, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    out: Path = options.out
    words = [str(question), f"--runs={options.runs}", f"--out={out / f'court_{question.stem}.json'}"]
    words += [f"--at-once={max(1, options.at_once // len(options.questions))}", f"--commit={options.commit}"]
    command = [sys.executable, "-u", "-m", "benchmarks.court", *words]
    with (out / f"{question.stem}.log").open("wb") as log:
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env=os.environ | ENVIRONMENT)


def stop(court: subprocess.Popen[bytes]) -> None:
    """End a court; its runs end with it."""
    court.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        court.wait(STOP_S)
    court.kill()
    court.wait()


def pack(runs: Path, file: Path) -> int:
    """Pack the small files of all runs that ended, and the questions' digests. Return the number of runs."""
    ended = [curve.parent for curve in runs.glob("*/*/seed_*/curve.json")]
    files = [run / name for run in ended for name in SMALL] + list(runs.glob("*/question.json"))
    with tarfile.open(file, "w:gz") as tar:
        for one in files:
            if one.exists():
                tar.add(one, one.relative_to(runs))
    return len(ended)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path, nargs="*", default=DEFAULT)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds in all")
    parser.add_argument("--at-once", type=int, default=12, help="runs at a time, over all questions")
    parser.add_argument("--commit", default="unknown", help="of a tree without git; `-dirty` at its end")
    options = parser.parse_args()
    options.runs, options.out = options.runs.resolve(), options.out.resolve()
    options.questions = [question.resolve() for question in options.questions]
    if missing := [question for question in options.questions if not question.is_file()]:
        parser.error(f"no such question: {missing[0]}")
    options.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.budget
    courts: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        for question in options.questions:
            courts.append(start(question, options))
        for court in courts:
            with contextlib.suppress(subprocess.TimeoutExpired):
                court.wait(max(0.0, end - time.monotonic()))
    finally:
        for court in courts:
            if court.poll() is None:
                stop(court)
    print(f"{pack(options.runs, options.out / 'runs.tar.gz')} runs ended")
    for question, court in zip(options.questions, courts, strict=True):
        print(f"{question.stem}: exit code {court.returncode}")
    return int(any(court.returncode for court in courts))


if __name__ == "__main__":
    sys.exit(main())
