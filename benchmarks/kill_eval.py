"""Kill an evaluation with SIGKILL again and again, go on each time, and compare results.json with an
undisturbed one.

    python benchmarks/kill_eval.py RECIPE MODEL [--kills 10] [--option --engine.max_running=16 ...]

The engine is deterministic. Half of the kills come where a file is written: before, in the middle of and
after an append, before the attempts are sorted and before the numbers are written. The others come at a time
drawn from the length of the undisturbed evaluation, wherever that is: in the start-up, in a forward, in a
program.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "kill_eval.json"
SEAMS = ("append:0:before", "append:1:half", "append:2:after", "settle", "results")
PROGRAM = """
import os, signal, sys
from rocstar.train.evaluation import attempts, folder

point, *how = os.environ["KILL_AT"].split(":")

def die():
    os.kill(os.getpid(), signal.SIGKILL)

if point == "append":
    real, left = attempts._append, int(how[0])

    def dying(path, data):
        global left
        left -= 1
        if left >= 0 or how[1] == "after":
            real(path, data)
        if left < 0:
            if how[1] == "half":
                real(path, data[: len(data) // 2])
            die()

    attempts._append = dying
elif point == "settle":
    attempts.AttemptsFile.settle = lambda self: die()
elif point == "results":
    folder.replace_text = lambda path, text: die()

from rocstar.train.cli import main
sys.exit(main())
"""


def run(arguments: list[str], *, at: str = "", after_s: float | None = None) -> tuple[int, str]:
    """`rocstar ARGUMENTS` in a process of its own, killed at a seam or after a time; exit code, messages."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        env=os.environ | {"KILL_AT": at},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, said = process.communicate(timeout=after_s)
    except subprocess.TimeoutExpired:
        process.kill()
        _, said = process.communicate()
    return process.returncode, said


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe")
    parser.add_argument("model")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--option", action="append", default=[], help="a field of the recipe")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    common = [
        "eval",
        options.recipe,
        f"--model={options.model}",
        "--engine.deterministic=true",
        *options.option,
    ]
    with tempfile.TemporaryDirectory() as place:
        whole, killed = Path(place) / "whole", Path(place) / "killed"
        begun = time.perf_counter()
        code, said = run([*common, f"--out={whole}"])
        if code:
            raise SystemExit(f"the undisturbed evaluation failed:\n{said}")
        whole_s = time.perf_counter() - begun
        kills = []
        for number in range(options.kills):
            # A kill before the folder tells of itself leaves nothing to go on with.
            resume = ["--resume"] if (killed / "manifest.json").exists() else []
            seam = SEAMS[number // 2 % len(SEAMS)] if number % 2 == 0 else ""
            after_s = None if seam else rng.uniform(0.2, 0.9) * whole_s
            code, said = run([*common, f"--out={killed}", *resume], at=seam, after_s=after_s)
            kills.append({"at": seam or f"{after_s:.1f} s", "code": code})
            if code == -signal.SIGKILL or code == 0:
                continue
            raise SystemExit(f"the evaluation was not killed but failed ({kills[-1]}):\n{said}")
        code, said = run([*common, f"--out={killed}", "--resume"])
        if code:
            raise SystemExit(f"the last resume failed:\n{said}")
        same = {
            name: (whole / name).read_bytes() == (killed / name).read_bytes()
            for name in ("results.json", *(f"attempts/{p.name}" for p in (whole / "attempts").iterdir()))
        }
    hit = sum(kill["code"] == -signal.SIGKILL for kill in kills)
    result = {"kills": hit, "same_bytes": same, "whole_s": round(whole_s, 1), "at": kills}
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))
    return 0 if all(same.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
