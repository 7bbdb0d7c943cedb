"""`rocstar rollout`: groups of trajectories, saved."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rocstar.train.cli.arguments import load, loading, new_verb, positive, recipe_argument, step_number
from rocstar.train.recipe.errors import ConfigError


def add(verbs: Any) -> None:
    parser = new_verb(
        verbs, "rollout", "roll out groups on the first stage's tasks and save the trajectories"
    )
    recipe_argument(parser)
    parser.add_argument("--model", help="Hugging Face directory, checkpoint, or hub name; default model.path")
    text = "a JSONL file for one step, or with --steps a folder for `train --from-rollouts`"
    parser.add_argument("--out", required=True, type=Path, help=text)
    number = parser.add_mutually_exclusive_group()
    number.add_argument("--limit", type=positive, default=8, help="number of tasks of the one step")
    number.add_argument("--steps", type=step_number, help="so many steps of rl.tasks_per_step tasks")
    text = "with --steps: roll out the steps that the folder does not have yet"
    parser.add_argument("--resume", action="store_true", help=text)
    text = "replace the file --out if there is one; it stays until the new one is whole"
    parser.add_argument("--force", action="store_true", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    text = "check model, data and engine and --out; load nothing large"
    parser.add_argument("--dry-run", action="store_true", help=text)
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    recipe = load(options, rest)
    if options.dry_run:
        from rocstar.train.evaluation.benchmarks.registry import load_tasks_of
        from rocstar.train.plan.dry_run import dry_run_alone, what_rollout_needs

        return dry_run_alone(
            recipe,
            options.model,
            what=what_rollout_needs,
            out=options.out,
            as_json=options.json,
            built_in=load_tasks_of,
        )
    with loading():
        from rocstar.train.evaluation.rollouts import roll_out_file, roll_out_steps

    if options.steps and options.force:
        raise ConfigError("--force replaces the file of one step; with --steps go on with --resume instead")
    if options.steps:
        out, steps = options.out, options.steps
        summary = roll_out_steps(recipe, options.model, out=out, steps=steps, resume=options.resume)
    elif options.resume:
        raise ConfigError("--resume goes on with the steps of a folder; it needs --steps")
    else:
        summary = roll_out_file(
            recipe, options.model, out=options.out, limit=options.limit, force=options.force
        )
    lines = "\n".join(f"{key}  {value:.3f}" for key, value in summary.items())
    print(json.dumps(summary) if options.json else lines)
    return 0
