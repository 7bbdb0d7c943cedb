"""What should a cold start teach? With written reasoning, without, and as good as nothing.

    python benchmarks/experiments/cold_start.py --seeds 5
    python benchmarks/experiments/cold_start.py --seeds 2 --miniature

Arm `non_reasoning` learns the demonstrator's conversations (format and calls alone), arm `reasoning` the same
conversations with the solution in words before the first call (reasons.py), arm `none` one update of the
first: a model from nothing has its tokenizer from there. Then all learn by the same reinforcement, with room
for the longer turns. Reported by seed: held-out avg@k after the cold start and at the end, length, and the
share of erroneous calls, each arm paired with `non_reasoning`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import uvloop
from arms import (
    MINIATURE_STEPS,
    Arm,
    common,
    curve_of,
    figure,
    mean_line,
    options_of,
    paired,
    train,
    write,
)
from quickstart_seeds import is_complete
from reasons import with_reasons

STEPS = 24
ROOM = ("--sft.max_tokens=640", "--stages.0.max_response_tokens=400")
VALUES = ("held_out_start", "held_out_end", "response_tokens", "error_share")


def main() -> int:
    parser = options_of(__doc__, "cold_start", seeds=5, steps=STEPS)
    text = "train nothing: conclude of the arms that came to their end, each seed with those that it has"
    parser.add_argument("--finished", action="store_true", help=text)
    options = parser.parse_args()
    steps = options.steps or (MINIATURE_STEPS if options.miniature else STEPS)
    results: dict[str, list[dict[str, Any]]] = {}
    for seed in range(options.seeds):
        plain, reasoned = (Path(), Path()) if options.finished else conversations(options, seed)
        for arm in (
            Arm(name="non_reasoning", overrides=(f"--sft.data={plain}",)),
            Arm(name="reasoning", overrides=(f"--sft.data={reasoned}",)),
            Arm(name="none", overrides=(f"--sft.data={plain}", "--sft.steps=1", "--sft.warmup_steps=0")),
        ):
            if options.finished and not is_complete(options.runs / f"{arm.name}_{seed}"):
                continue
            more = (*ROOM, f"--stages.0.steps={steps}", f"--eval.0.every={steps // 6}")
            found = told(train(options, arm, seed, more), steps)
            results.setdefault(arm.name, []).append({"seed": seed, **found})
    if "non_reasoning" not in results:
        print(f"cold_start: no arm 'non_reasoning' in {options.runs} came to its end", file=sys.stderr)
        return 2
    conclude(options, results)
    return 0


def conversations(options: argparse.Namespace, seed: int) -> tuple[Path, Path]:
    """The two files of a seed, made if they are not there: the same tasks, programs, slips and results."""
    folder = options.runs / f"conversations_{seed}"
    files = folder / "plain.jsonl", folder / "reasoned.jsonl"
    if not all(file.exists() for file in files):
        folder.mkdir(parents=True, exist_ok=True)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            made = runner.run(demonstrated(options, seed))
        write_rows(files[0], made)
        write_rows(files[1], [with_reasons(row) for row in made])
    return files


async def demonstrated(options: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """What the recipe's demonstrator says, in a real sandbox."""
    from rocstar.engine.types import TurnForm
    from rocstar.train.evaluation.benchmarks.registry import load_tasks_of
    from rocstar.train.learner.cold_start import conversations_for
    from rocstar.train.plan.preflight import load_all_tasks
    from rocstar.train.recipe.load import load_recipe
    from rocstar.train.record.callbacks import Callback, Listeners
    from rocstar.train.serving.agent import open_sandbox

    recipe = load_recipe(options.recipe, list(common(options, seed)))
    tasks = load_all_tasks(recipe, built_in=load_tasks_of)
    async with open_sandbox(recipe) as sandbox:
        return await conversations_for(
            recipe, tasks.demonstrations, sandbox, Listeners(Callback()), TurnForm()
        )


def write_rows(file: Path, made: list[dict[str, Any]]) -> None:
    """The file appears whole or not at all."""
    partial = file.with_suffix(".partial")
    partial.write_text("".join(json.dumps(row) + "\n" for row in made))
    partial.replace(file)


def told(directory: Path, steps: int) -> dict[str, Any]:
    curve = curve_of(directory)
    last = curve.steps[-max(1, steps // 4) :]
    return {
        "held_out_start": curve.evaluations[0][1],
        "held_out_end": curve.evaluations[-1][1],
        "response_tokens": fmean(row["seq_len/mean"] for row in last),
        "error_share": fmean(row.get("tool/error_share", 0.0) for row in last),
        "curve": curve.evaluations,
    }


def conclude(options: argparse.Namespace, results: dict[str, list[dict[str, Any]]]) -> None:
    base = {one["seed"]: one for one in results["non_reasoning"]}
    against = {
        name: {
            value: paired([one[value] - base[one["seed"]][value] for one in of_arm if one["seed"] in base])
            for value in VALUES
            if value != "response_tokens"  # a difference of lengths is no share
        }
        for name, of_arm in results.items()
        if name != "non_reasoning"
    }
    means = {
        name: {value: fmean(one[value] for one in of_arm) for value in VALUES}
        for name, of_arm in results.items()
    }
    write(options, {"means": means, "minus_non_reasoning": against, "results": results})
    lines = [
        mean_line(name, [[(float(x), y) for x, y in one["curve"]] for one in of_arm])
        for name, of_arm in results.items()
    ]
    options.figure.write_text(figure("Cold starts", [("Held-out avg@k", "RL step", lines, "{:.2f}".format)]))
    print(json.dumps(means, indent=1))


if __name__ == "__main__":
    sys.exit(main())
