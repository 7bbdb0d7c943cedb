"""How much longer does the quickstart take where another program holds a core?

    python benchmarks/busy_quickstart.py                  (in miniature: 60 SFT steps, 4 RL steps)
    python benchmarks/busy_quickstart.py --whole          (the recipe as it is, with one core taken)

In miniature four arms in turn, --rounds times: alone and with one core taken, each with threads that sleep
while they wait (what rocstar sets) and with threads that spin (libgomp's default, named by GOMP_SPINCOUNT).
A run that is not over after --limit-s is ended, and counts as that long. With --whole only the busy arm runs.
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
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))
from hogs import cores, taken
from sandbox_bench.report import ROOT, bar, finish

MINIATURE = ("--sft.steps=60", "--stages.0.steps=4")
SLEEP: dict[str, str] = {}
SPIN = {"GOMP_SPINCOUNT": "300000"}
ARMS = (("sleeping", SLEEP), ("spinning", SPIN))


def seconds_of(options: Sequence[str], settings: dict[str, str], *, busy: bool, limit_s: float) -> float:
    """Wall time of a run, torch's import and the report included; `limit_s` if it was ended."""
    directory = Path(tempfile.mkdtemp(prefix="rocstar-busy-"))
    recipe = ROOT / "recipes" / "quickstart.toml"
    command = [sys.executable, "-m", "rocstar.train", str(recipe), f"--output-dir={directory / 'run'}"]
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
    environment = {k: v for k, v in os.environ.items() if k not in names} | settings
    try:
        with taken(cores()[:1] if busy else []):
            started = time.monotonic()
            try:
                subprocess.run(
                    [*command, *options],
                    env=environment,
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


def miniature(rounds: int, limit_s: float) -> dict[str, list[float]]:
    """Seconds of every arm, the arms in turn."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, settings in ARMS:
            for busy in (False, True):
                arm = f"{name}, {'one core taken' if busy else 'alone'}"
                seconds = seconds_of(MINIATURE, settings, busy=busy, limit_s=limit_s)
                found.setdefault(arm, []).append(round(seconds, 2))
                print(f"{arm}: {seconds:.1f} s", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit-s", type=float, default=240.0)
    parser.add_argument("--whole", action="store_true", help="the whole quickstart with one core taken")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.whole:
        seconds = seconds_of((), SLEEP, busy=True, limit_s=1800.0)
        bars = [bar("seconds of the whole quickstart, one core taken", seconds, 360.0, at_most=True)]
        return finish("busy_quickstart_whole", {"seconds": seconds}, bars, options.out)
    found = miniature(options.rounds, options.limit_s)
    middle = {arm: median(values) for arm, values in found.items()}
    ratios = {name: middle[f"{name}, one core taken"] / middle[f"{name}, alone"] for name, _ in ARMS}
    bars = [bar("miniature, one core taken against alone", ratios["sleeping"], 1.5, at_most=True)]
    result = {"seconds": found, "median": middle, "busy_over_alone": ratios, "limit_s": options.limit_s}
    return finish("busy_quickstart", result, bars, options.out)


if __name__ == "__main__":
    sys.exit(main())
