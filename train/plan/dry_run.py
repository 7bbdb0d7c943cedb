"""`--dry-run`: the plan of a run, and all that is missing for it. Nothing is built, written or downloaded."""

import asyncio
import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rocstar.train.learner.model_io import chosen_model
from rocstar.train.plan.plan import Machines, describe_plan
from rocstar.train.plan.preflight import Findings, LoadSet, check_sets, check_start
from rocstar.train.plan.prompts import dated
from rocstar.train.plan.resume import complete
from rocstar.train.recipe.config import Recipe, SftConfig
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.recipe.load import to_toml
from rocstar.train.serving.agent import open_sandbox

Rehearse = Callable[[Recipe, Machines], Any]
"""Rehearses the learner; implemented in train/rehearsal, a higher layer, with its report as the result."""


def dry_run_of_training(
    recipe: Recipe,
    words: Sequence[str],
    run_dir: Path,
    *,
    world: str | None,
    resume: bool = False,
    rollouts: Path | None = None,
    shows_recipe: bool = False,
    as_json: bool = False,
    built_in: LoadSet,
    learner: Rehearse | None = None,
) -> int:
    """Print the plan, the facts that cannot be checked here, and the verdict. ConfigErrors if it is missing.

    Args:
        recipe: the recipe to run.
        words: the arguments that start the run: verb, recipe, options.
        run_dir: the run's folder.
        world: NODESxGPUS of other machines, +NODESxGPUS of those that only serve; None: this one, or
            torchrun's.
        resume: the run in the folder goes on.
        rollouts: the records that it learns from.
        shows_recipe: print the recipe, too, as TOML with the other lines as comments.
        as_json: print one object with the problems, and return 0 or 2.
        built_in: reads a built-in set.
        learner: rehearses the learner, and may refuse.
    """
    machines = Machines.parse(world)
    elsewhere = world is not None
    recipe = dated(recipe, former=run_dir if resume else rollouts, fetches=False)
    found = Findings()
    done = found.collect(lambda: complete(recipe, run_dir, live=rollouts is None)) if resume else None
    if done is not None:
        print(json.dumps({"ok": True, "verdict": done}) if as_json else done)
        return 0
    checks = partial(check_start, resume=resume, rollouts=rollouts, elsewhere=elsewhere, built_in=built_in)
    if not found.problems:  # a start ends with these alone
        found = checks(recipe, run_dir, dry=True, nodes=machines.all_nodes)
    machines = found.collect(lambda: Machines.parse(world, recipe.engine)) or machines
    plan = found.collect(lambda: describe_plan(recipe, words, machines)) or []
    rehearsed = found.collect(lambda: learner(recipe, machines)) if learner else None
    if rehearsed is not None:
        found.problems += rehearsed.problems
    if elsewhere:
        found.unknown.append("tool.sandbox: programs of the policy, which are isolated on the other machines")
    elif rollouts is None:
        _try_sandbox(recipe, found)
    if as_json:
        more: dict[str, Any] = {
            "world": dataclasses.asdict(machines),
            "recipe": recipe.model_dump(mode="json"),
            "plan": plan,
        }
        if learner is not None:
            more |= rehearsed.as_json() if rehearsed else {"peak_gib": None, "fits": False}
        return _as_json(found, **more)
    plan += rehearsed.lines() if rehearsed else []
    return _as_text(found, plan, to_toml(recipe) if shows_recipe else "")


def _try_sandbox(recipe: Recipe, found: Findings) -> None:
    """Open and close the sandbox, as a start does behind its checks."""

    async def open_and_close() -> None:
        async with open_sandbox(recipe):
            pass

    try:
        if not found.problems:
            asyncio.run(open_and_close())
    except (ConfigError, TrainingStopped) as error:
        found.problems.append(str(error))


def dry_run_alone(
    recipe: Recipe, model: str | None, *, evaluates: bool, out: Path | None, as_json: bool, built_in: LoadSet
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
            "run": recipe.run.model_copy(update={"callbacks": [], "trackers": []}),
            "stages": [] if evaluates else recipe.stages[:1],
            "model": recipe.model.model_copy(update={"path": path}),
        }
        recipe = dated(recipe.model_copy(update=needed), former=out, fetches=False)
        found = check_start(recipe, None, dry=True, built_in=built_in)
        _try_sandbox(recipe, found)
    if out is not None and not os.access(out.absolute().parent, os.W_OK | os.X_OK):
        found.problems.append(f"--out {str(out)!r}: its folder is missing or cannot be written; give another")
    return _as_json(found) if as_json else _as_text(found)


def _as_text(found: Findings, plan: Sequence[str] = (), recipe: str = "") -> int:
    lines = [*plan, *found.notes, *(f"not checked: {line}" for line in found.unknown)]
    if not found.problems:
        lines.append(found.verdict)
    print("\n".join(f"# {line}".rstrip() if recipe else line for line in lines))
    if recipe:
        print(f"\n{recipe}")
    found.refuse()
    return 0


def _as_json(found: Findings, **more: object) -> int:
    ok = not found.problems
    seen = {"problems": found.problems, "not_checked": found.unknown, "notes": found.notes}
    print(json.dumps({"ok": ok, "verdict": found.verdict, **seen, **more}))
    return 0 if ok else 2
