"""kill -9 of rank 0 inside rollouts that run ahead of the learner: is anything done twice, or otherwise?

    python benchmarks/kill_ahead.py --out benchmarks/results/kill_ahead.json

One cold start (or --model); from its model a run at rl.max_staleness = 1 that is killed, and resumed, when
the file of a step that is rolled out ahead has so many of its groups, a number drawn for each kill, and the
step before it is not learned. Which version wrote a token depends on timing there, so there is no second run
to compare with: the run is held against its own records. Counted: trajectories that lie in them in two forms,
which is what rolling out again leaves, groups that had ended at a kill and are not there bit for bit at the
end, and steps that were learned again with another loss or gradient norm. At the end another learner makes
weights of the records, which are compared bit by bit. What lies under --runs is removed first.
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
from kill_resume import POLL_S, has_ended, last_step, untimed
from killed_run import GROUPS, SIBLINGS, SMALL, Start, Trainer, parsed
from quickstart_seeds import machine
from sandbox_bench.report import command as command_line

from rocstar.engine.record.columns import frame_key
from rocstar.engine.record.files import is_sealed
from rocstar.engine.record.step_file import all_places
from rocstar.train.record.run_directory import TRAJECTORIES, records_file

Frames = dict[str, set[bytes]]
"""By trajectory: one form, or as many as it was rolled out. A group that was learned in a later step than it
was meant for lies in the files of both."""
AHEAD = (*SMALL, "--engine.deterministic=false", "--rl.max_staleness=1")


def frames(directory: Path) -> Frames:
    """All that lies in the records, whose last frame may be torn."""
    found: Frames = {}
    for path in sorted((directory / TRAJECTORIES).glob("step_*.columns")):
        for place in all_places(path):
            frame = place.read()
            found.setdefault(str(frame_key(frame)), set()).add(frame)
    return found


def learned(directory: Path) -> dict[int, tuple[Any, Any]]:
    """By step: the loss and the gradient norm of its row."""
    path = directory / "metrics.jsonl"
    text = path.read_text(errors="replace")
    lines = text.splitlines()[: text.count("\n")]  # the last one may be torn
    rows = [json.loads(line) for line in lines]
    return {
        row["step"]: (row.get("loss/policy"), row.get("optim/grad_norm"))
        for row in rows
        if row["phase"] == "rl"
    }


def kill_ahead(process: subprocess.Popen, directory: Path, step: int, groups: int) -> dict[str, Any] | None:
    """Kill when `groups` groups of a step two behind the last row, which is `step` or a later one, are there.

    The batch between is complete, and being learned; where that was over sooner, one group fewer is enough
    for the next. None if the run ended before.
    """
    first = None
    while True:
        last = last_step(directory)
        if last >= step and first is None:
            first = last
        ahead, between = records_file(directory, last + 2), records_file(directory, last + 1)
        if last >= step and ahead.is_file() and not is_sealed(ahead) and between.is_file():
            num = len(list(all_places(ahead))) // SIBLINGS
            if max(1, groups - (last - (first or last))) <= num < GROUPS:
                process.kill()
                process.wait()
                return {"last_row": last, "step_ahead": last + 2, "groups_written": num}
        if has_ended(process, POLL_S):
            return None


def whole_groups(found: Frames) -> set[str]:
    """Trajectories of groups all of whose siblings are there."""
    counts = Counter(key.rpartition("/")[0] for key in found)
    return {key for key in found if counts[key.rpartition("/")[0]] == SIBLINGS}


def run_killed(
    start: Start, directory: Path, *, steps: int, kills: int, rng: random.Random
) -> Iterator[tuple[dict[str, Any], Frames, dict[int, tuple[Any, Any]]]]:
    """Start, kill, resume, ... at `kills` moments spread over the steps; then let it end. With each kill what
    it left of groups that had ended, and of rows."""
    for k in range(kills):
        process = start((directory / "metrics.jsonl").exists())
        found = kill_ahead(process, directory, 1 + k * (steps - 4) // kills, rng.randrange(1, GROUPS))
        if found is None:
            return
        there = frames(directory)
        kept = whole_groups(there)
        yield found, {key: there[key] for key in kept}, learned(directory)
    start((directory / "metrics.jsonl").exists()).wait()


def main() -> None:
    options = parsed(str(__doc__), name="kill_ahead", steps=24)
    killed, again = (options.runs / name for name in ("killed", "again"))
    with (options.runs / "log").open("w") as log:
        trainer = Trainer(options=options, settings=AHEAD, log=log)
        rest = trainer.begin()
        start = trainer.starting(killed, rest)
        kills, kept, rows = [], [], []
        rng = random.Random(options.seed)
        for found, there, row in run_killed(start, killed, steps=options.steps, kills=options.kills, rng=rng):
            kills.append(found)
            kept.append(there)
            rows.append(row)
            print(found, file=sys.stderr, flush=True)
        trainer.run(again, *rest, "--from-rollouts", str(killed))
    summary = {
        "machine": machine(),
        "command": command_line(sys.argv),
        "steps": options.steps,
        "kills": kills,
        "num_kills": len(kills),
        **compared(killed, again, kept, rows, options.steps),
    }
    options.out.write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary, indent=1))


def compared(
    killed: Path, again: Path, kept: list[Frames], rows: list[dict[int, tuple[Any, Any]]], steps: int
) -> dict[str, Any]:
    """What the kills left against what is there at the end."""
    from safetensors.torch import load_file

    after, last = frames(killed), learned(killed)
    weights, others = (
        load_file(run / "checkpoints" / f"step_{steps}" / "model.safetensors") for run in (killed, again)
    )
    differ = [name for name, weight in weights.items() if not weight.equal(others[name])]
    moved = sum(row[step] != last[step] for row in rows for step in row)
    return {
        "trajectories": len(after),
        "expected": steps * GROUPS * SIBLINGS,
        "rolled_out_again": sum(len(forms) - 1 for forms in after.values()),
        "trajectories_kept_at_kills": sum(map(len, kept)),
        "lost_of_these": sum(after.get(key) != forms for found in kept for key, forms in found.items()),
        "rows_at_kills": sum(map(len, rows)),
        "learned_otherwise": moved,
        "num_updates": sum(row.get("loss/policy") is not None for row in untimed(killed / "metrics.jsonl")),
        "weights_that_differ": differ,
    }


if __name__ == "__main__":
    main()
