"""How much longer does the quickstart take where another program holds a core?

    python benchmarks/busy_quickstart.py                  (in miniature: 60 SFT steps, 4 RL steps)
    python benchmarks/busy_quickstart.py --before ../earlier/.venv/bin/python
    python benchmarks/busy_quickstart.py --whole          (the recipe as it is, with one core taken)

In miniature, --rounds times: alone and with one core taken, each with threads that sleep while they wait (as
rocstar sets), with threads that spin (libgomp's default, named by GOMP_SPINCOUNT), and with the rocstar of
another interpreter, an earlier commit say. A run that is not over after --limit-s is ended, and counts as
that long. With --whole only the busy arm runs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))
from hogs import cores, taken
from sandbox_bench.report import ROOT, bar, finish

MINIATURE = ("--sft.steps=60", "--stages.0.steps=4")
SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")


@dataclass(frozen=True)
class Arm:
    """One way to run it."""

    name: str
    settings: dict[str, str] = field(default_factory=dict)
    python: str = sys.executable


def seconds_of(arm: Arm, options: Sequence[str], *, busy: bool, limit_s: float) -> float:
    """Wall time of a run, torch's import and the report included; `limit_s` if it was ended."""
    directory = Path(tempfile.mkdtemp(prefix="rocstar-busy-"))
    recipe = ROOT / "recipes" / "quickstart.toml"
    command = [arm.python, "-m", "rocstar.train", str(recipe), f"--output-dir={directory / 'run'}"]
    environment = {k: v for k, v in os.environ.items() if k not in SETTINGS} | arm.settings
    try:
        with taken(cores()[:1] if busy else []):
            started = time.monotonic()
            try:
                subprocess.run(
                    [*command, *options],
                    env=environment,
                    cwd=directory,
                    check=True,
                    timeout=limit_s,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            except subprocess.TimeoutExpired:
                return limit_s
            return time.monotonic() - started
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def miniature(arms: Sequence[Arm], rounds: int, limit_s: float) -> dict[str, list[float]]:
    """Seconds of every arm, the arms in turn."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for arm in arms:
            for busy in (False, True):
                name = f"{arm.name}, {'one core taken' if busy else 'alone'}"
                seconds = seconds_of(arm, MINIATURE, busy=busy, limit_s=limit_s)
                found.setdefault(name, []).append(round(seconds, 2))
                print(f"{name}: {seconds:.1f} s", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit-s", type=float, default=240.0)
    parser.add_argument("--before", metavar="PYTHON", help="an interpreter with another rocstar")
    parser.add_argument("--no-spinning", action="store_true", help="leave that arm out")
    parser.add_argument("--whole", action="store_true", help="the whole quickstart with one core taken")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.whole:
        seconds = seconds_of(Arm("sleeping"), (), busy=True, limit_s=1800.0)
        bars = [bar("seconds of the whole quickstart, one core taken", seconds, 360.0, at_most=True)]
        return finish("busy_quickstart_whole", {"seconds": seconds}, bars, options.out)
    arms = [Arm("sleeping")]
    if not options.no_spinning:
        arms.append(Arm("spinning", {"GOMP_SPINCOUNT": "300000"}))
    if options.before:
        arms.append(Arm("before", python=options.before))
    found = miniature(arms, options.rounds, options.limit_s)
    middle = {name: median(values) for name, values in found.items()}
    ratios = {arm.name: middle[f"{arm.name}, one core taken"] / middle[f"{arm.name}, alone"] for arm in arms}
    bars = [bar("miniature, one core taken against alone", ratios["sleeping"], 1.5, at_most=True)]
    result = {"seconds": found, "median": middle, "busy_over_alone": ratios, "limit_s": options.limit_s}
    return finish("busy_quickstart", result, bars, options.out)


if __name__ == "__main__":
    sys.exit(main())
