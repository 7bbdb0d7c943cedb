"""`--dry-run`: the recipe, the plan, and all that is missing for it. Nothing is built, written or fetched."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocstar.train.groups.from_rollouts import Records
from rocstar.train.learner.model_io import chosen_model
from rocstar.train.plan.plan import Machines, describe_plan
from rocstar.train.plan.preflight import (
    Findings,
    LoadSet,
    check_dry_run,
    check_lora,
    check_sets,
    examine_directory,
)
from rocstar.train.plan.prompts import dated
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.sft_config import SftConfig
from rocstar.train.recipe.toml_file import to_toml

Rehearse = Callable[[Recipe, Machines], Any]
"""Rehearses the learner; implemented in train/rehearsal, a higher layer, with its report as the result."""
HOW_TO_REHEARSE = "to rehearse the learner's memory on a GPU of M GiB:  --dry-run --gpu-memory-gb M"


def dry_run_of_training(
    recipe: Recipe,
    name: str,
    run_dir: Path,
    *,
    world: str | None,
    resume: bool = False,
    rollouts: Path | None = None,
    as_json: bool = False,
    built_in: LoadSet,
    learner: Rehearse | None = None,
) -> int:
    """Print recipe, plan and facts that cannot be checked here. Raise ConfigError for missing requirements.

    `world`: NODESxGPUS of other machines, +NODESxGPUS of those that only serve; None: this one, or
    torchrun's. As JSON, problems are in the object, and the exit code, 0 or 2, is returned. `learner`
    rehearses the learner, and may refuse.
    """
    machines = Machines.parse(world)
    elsewhere = world is not None
    recipe = dated(recipe, former=run_dir if resume else rollouts, fetches=False)
    if rollouts is None:
        found = check_dry_run(
            recipe, run_dir, resume=resume, elsewhere=elsewhere, nodes=machines.all_nodes, built_in=built_in
        )
    else:
        found = Findings()
        examine_directory(recipe, run_dir, found, resume=resume, elsewhere=elsewhere)
        found.collect(lambda: Records.open(rollouts, recipe, run_dir))
    machines = found.collect(lambda: Machines.parse(world, recipe.engine)) or machines
    found.collect(lambda: check_lora(recipe, machines.all_nodes))
    plan = found.collect(lambda: describe_plan(recipe, name, machines)) or ""
    rehearsed = found.collect(lambda: learner(recipe, machines)) if learner else None
    if rehearsed is not None:
        found.problems += rehearsed.problems
    if as_json:
        lines = [line.removeprefix("#").removeprefix(" ") for line in plan.splitlines()]
        more: dict[str, Any] = {
            "world": dataclasses.asdict(machines),
            "recipe": recipe.model_dump(mode="json"),
            "plan": lines,
        }
        if learner is not None:
            more |= rehearsed.as_json() if rehearsed else {"peak_gib": None, "fits": False}
        return _as_json(found, **more)
    print(to_toml(recipe))
    print(plan)
    for line in rehearsed.lines() if rehearsed else ([] if learner else [HOW_TO_REHEARSE]):
        print(f"# {line}")
    return _as_text(found)


def dry_run_alone(
    recipe: Recipe,
    model: str | None,
    *,
    evaluates: bool,
    out: Path | None,
    as_json: bool,
    built_in: LoadSet,
) -> int:
    """The dry run of `eval`, or of `rollout` unless `evaluates`: it checks the needs of that verb alone."""
    found = Findings()
    path = found.collect(lambda: chosen_model(recipe, model))
    if evaluates:
        found.collect(lambda: check_sets(recipe))
    elif not recipe.stages:
        found.problems.append("the recipe has no [[stages]]: there are no limits to roll out under")
    if not found.problems:
        needed = {
            "sft": SftConfig(steps=0),
            "run": recipe.run.model_copy(update={"callbacks": []}),
            "stages": [] if evaluates else recipe.stages[:1],
            "model": recipe.model.model_copy(update={"path": path}),
        }
        recipe = dated(recipe.model_copy(update=needed), former=out, fetches=False)
        seen = check_dry_run(recipe, None, built_in=built_in)
        found.problems += seen.problems
        found.unknown += seen.unknown
        found.notes += seen.notes
    if out is not None and not os.access(out.absolute().parent, os.W_OK | os.X_OK):
        found.problems.append(f"--out {str(out)!r}: its folder is missing or cannot be written; give another")
    return _as_json(found) if as_json else _as_text(found)


def _as_text(found: Findings) -> int:
    for line in found.notes:
        print(f"# {line}")
    for line in found.unknown:
        print(f"# not checked: {line}")
    found.refuse()
    print("# nothing is missing")
    return 0


def _as_json(found: Findings, **more: object) -> int:
    ok = not found.problems
    seen = {"problems": found.problems, "not_checked": found.unknown, "notes": found.notes}
    print(json.dumps({"ok": ok, **seen, **more}))
    return 0 if ok else 2
