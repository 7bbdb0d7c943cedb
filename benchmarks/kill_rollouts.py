"""kill -9 inside rollouts: is a group that had ended rolled out again, and are the weights the same?

    python benchmarks/kill_rollouts.py --out benchmarks/results/kill_rollouts.json

One cold start (or --model); from its model one uninterrupted run, and one that is killed when the file of a
step has so many of its groups, a number drawn for each kill, and resumed. Checkpoints are several steps
apart, so that a resume learns from steps that lie behind one, too. Counted: trajectories that the files of
the steps have more than once, which is what rolling out again leaves; compared bit by bit: the last weights,
and every row of metrics.jsonl but its times. engine.max_running is that of a group, for what decodes together
is taken together or not at all. What lies under --runs is removed first.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from kill_resume import POLL_S, differences, has_ended, last_step
from killed_run import GROUPS, SIBLINGS, SMALL, Start, Trainer, parsed
from quickstart_seeds import machine
from sandbox_bench.report import command as command_line

from rocstar.engine.record.columns import frame_key
from rocstar.engine.record.files import is_sealed
from rocstar.engine.record.step_file import all_places
from rocstar.train.record.run_directory import TRAJECTORIES, records_file


def written(directory: Path, step: int) -> Counter[str]:
    """How often each trajectory is in the file of a step."""
    return Counter(str(frame_key(place.read())) for place in all_places(records_file(directory, step)))


def kill_inside(process: subprocess.Popen, directory: Path, step: int, groups: int) -> dict[str, Any] | None:
    """Kill when the file of `step` or of a later one has `groups` groups and is no whole step's.

    None if the run ended before.
    """
    while True:
        there = sorted((directory / TRAJECTORIES).glob("step_*.columns"))
        latest = there[-1] if there else None
        if latest is not None and int(latest.stem[5:]) >= step and not is_sealed(latest):
            num = len(list(all_places(latest))) // SIBLINGS
            if groups <= num < GROUPS:
                process.kill()
                process.wait()
                return {"step": int(latest.stem[5:]), "groups_written": num, "last_row": last_step(directory)}
        if has_ended(process, POLL_S):
            return None


def run_killed(
    start: Start, directory: Path, *, steps: int, kills: int, rng: random.Random
) -> Iterator[dict]:
    """Start, kill, resume, ... at `kills` moments spread over the steps; then let it end."""
    for k in range(kills):
        process = start((directory / "metrics.jsonl").exists())
        found = kill_inside(process, directory, 1 + k * steps // kills, rng.randrange(1, GROUPS))
        if found is None:
            return
        yield found
    start((directory / "metrics.jsonl").exists()).wait()


def main() -> None:
    options = parsed(str(__doc__), name="kill_rollouts", steps=10)
    whole, killed = (options.runs / name for name in ("whole", "killed"))
    with (options.runs / "log").open("w") as log:
        trainer = Trainer(options=options, settings=SMALL, log=log)
        rest = trainer.begin()
        trainer.run(whole, *rest)
        start = trainer.starting(killed, rest)
        kills = []
        rng = random.Random(options.seed)
        for found in run_killed(start, killed, steps=options.steps, kills=options.kills, rng=rng):
            kills.append(found)
            print(found, file=sys.stderr, flush=True)
    counts = [count for step in range(1, options.steps + 1) for count in written(killed, step).values()]
    found = differences(killed, whole, options.steps)
    summary = {
        "machine": machine(),
        "command": command_line(sys.argv),
        "steps": options.steps,
        "kills": kills,
        "num_kills": len(kills),
        "trajectories": len(counts),
        "expected": options.steps * GROUPS * SIBLINGS,
        "rolled_out_again": sum(counts) - len(counts),
        "different": found,
        "bit_identical": bool(found["num_updates"])
        and not (found["weights"] or found["rows"])
        and len(set(found["num_rows"])) == 1,
    }
    options.out.write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
