"""How long `rocstar eval --rescore` takes for 10,000 stored attempts.

    python benchmarks/bench_rescore.py --set math500 --path math500.jsonl [--attempts 10000]

The attempts are made up from the set's own golds, in equal parts: the gold as it is, a restatement that only
the grader finds equal (a space, another fraction command, a bracket), a wrong value of the same form, a
number, and no answer. So two fifths of them go to the grader in the sandbox, which is more than policies give
it. Token ids are four: what is read and written is small, and what is timed is the judge.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rocstar.engine.types import (
    FinishReason,
    Origin,
    Scored,
    Segment,
    Task,
    Trajectory,
    TrajectoryKey,
    Turn,
    VersionSpan,
)
from rocstar.train.evaluation.attempts import record_line
from rocstar.train.evaluation.benchmarks.registry import load_set
from rocstar.train.evaluation.folder import Folder, write_numbers
from rocstar.train.evaluation.rescore import beside, boxed
from rocstar.train.evaluation.sets import evaluation_sets
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.eval_config import EvalConfig
from rocstar.train.recipe.toml import to_toml

RESULTS = Path(__file__).parent / "results" / "rescore.json"


def restated(answer: str) -> str:
    """The same value in other words."""
    if "\\frac" in answer:
        return answer.replace("\\frac", "\\dfrac")
    return f"{answer}.0" if answer.isdecimal() else f"\\left({answer}\\right)"


def texts(answer: str) -> list[str]:
    """What five policies write."""
    return [boxed(answer), boxed(restated(answer)), boxed(beside(answer)), boxed("17"), "I do not know."]


def trajectory(task: Task, sibling: int, text: str) -> Trajectory:
    """An attempt of one turn that says so."""
    return Trajectory(
        key=TrajectoryKey(seed=0, step=0, task_id=task.id, sibling=sibling),
        task=task,
        ids=(1, 2, 3, 4),
        logprobs=(None, None, -0.5, -0.5),
        segments=(
            Segment(start=0, end=2, origin=Origin.prompt),
            Segment(start=2, end=4, origin=Origin.policy),
        ),
        version_spans=(VersionSpan(start=2, end=4, version=0),),
        turns=(Turn(start=2, end=4, text=text, stopped=True),),
        finish_reason=FinishReason.answered,
        outcome=Scored(reward=0.0, method="none"),
    )


def make(folder: Folder, config: EvalConfig, attempts: int) -> int:
    """An evaluation folder with so many attempts, none of them judged yet; returns how many there are."""
    tasks = load_set(config).tasks
    k = max(5, attempts // len(tasks))
    tasks = tasks[: -(-attempts // k)]
    recipe = Recipe(eval=[config.model_copy(update={"samples_per_task": k, "limit": len(tasks)})])
    path = folder.attempts(config.label)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        for task in tasks:
            said = texts(task.answer)
            for sibling in range(k):
                file.write(record_line(trajectory(task, sibling, said[sibling % len(said)]), str))
    (folder.directory / "config.toml").write_text(to_toml(recipe), encoding="utf-8")
    write_numbers(evaluation_sets(recipe, {config.label: tasks}), folder, seed=0, step=0)
    return k * len(tasks)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", default="math500", help="a built-in set of mathematics")
    parser.add_argument("--path", type=Path, required=True, help="a copy of it")
    parser.add_argument("--attempts", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    config = EvalConfig(set=options.set, path=str(options.path))
    with tempfile.TemporaryDirectory() as place:
        folder = Folder(Path(place))
        made = make(folder, config, options.attempts)
        program = "import sys; from rocstar.train.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", program, "eval", "--rescore", place, "--json"]
        begun = time.perf_counter()
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        wall_s = time.perf_counter() - begun
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = json.loads(ended.stdout)
    result = {
        "set": options.set,
        "attempts": made,
        "wall_s": round(wall_s, 2),
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "per_s": round(made / wall_s, 1),
        "changed": told["changed"],
        "load": os.getloadavg()[0],
        "cpus": os.cpu_count(),
        "machine": platform.platform(),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
