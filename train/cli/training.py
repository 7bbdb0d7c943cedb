"""`rocstar train`, `rocstar sft` and `rocstar rollout`, and the texts that several verbs share."""

import argparse
import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rocstar.sandbox.command_line import closest
from rocstar.sandbox.extras import shell_command
from rocstar.train.recipe.config import Recipe, with_eval_limits
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.explain import find_meant
from rocstar.train.recipe.load import load_recipe, shipped_recipes
from rocstar.train.record.run_directory import recipe_of

FIELDS = "fields are set with --section.field=value or --section.field value, switches with true or false"
RECIPE_HELP = f"a TOML file, or one of {', '.join(shipped_recipes())}; {FIELDS}"
TARGET_HELP = f"a run directory (its last checkpoint), a checkpoint or model folder, or {RECIPE_HELP}"


def refuse_unknown(parser: argparse.ArgumentParser, rest: list[str], *, takes_fields: bool) -> None:
    """Raise ConfigError for an argument that is no recipe field, or whose name is close to an option's."""
    names = re.findall(r"--([a-z][a-z-]*)", parser.format_usage()) if rest else []
    for option in rest:
        name, given, _ = option.removeprefix("--").partition("=")
        is_option = option.startswith("--")
        if is_option and takes_fields and ("." in name or (given and name in Recipe.model_fields)):
            continue
        near = closest(name, names) if is_option else ""
        fix = f"did you mean --{near}?" if near else f"see `{parser.prog} --help`"
        if takes_fields and not near:
            meant = find_meant(name) if is_option else ""
            fix = meant or "recipe fields are set with --section.field=value"
        raise ConfigError(f"option {option!r} is not known; {fix}")


def directory_of(options: argparse.Namespace, recipe: Recipe) -> Path:
    """Return the run directory. Raise ConfigError for `--output-dir "$UNSET"`, never take the default."""
    if options.output_dir == "":
        raise ConfigError("--output-dir is empty; name a folder, or leave it out for runs/NAME")
    return Path(options.output_dir or f"runs/{recipe.run.name}")


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Show on rank 0 that torch is being imported: it takes seconds, on a busy machine a minute."""
    from rocstar.engine.progress.progress import working
    from rocstar.engine.progress.status import StatusLine

    if os.environ.get("RANK", "0") != "0":
        yield
        return
    with StatusLine(), working("importing torch"):
        yield


def train(options: argparse.Namespace, rest: list[str]) -> int:
    """Train by a recipe, or with --dry-run print its plan."""
    recipe = load_recipe(options.recipe, rest)
    if options.only_sft:
        # The evaluation keeps the limits of the last stage.
        recipe = with_eval_limits(recipe).model_copy(update={"stages": []})
    directory = directory_of(options, recipe)
    if options.dry_run:
        from rocstar.train.evaluation.benchmarks.registry import load_tasks_of
        from rocstar.train.plan.dry_run import dry_run_of_training

        return dry_run_of_training(
            recipe,
            _words(options, rest, resume=options.resume),
            directory,
            shows_recipe=options.show_recipe,
            world=options.world,
            resume=options.resume,
            rollouts=options.from_rollouts,
            as_json=options.json,
            built_in=load_tasks_of,
            learner=_rehearsal(options),
        )
    for name in ("gpu_memory_gb", "json", "world", "show_recipe"):
        if getattr(options, name):
            raise ConfigError(f"--{name.replace('_', '-')} is an option of --dry-run; add it, or leave it out")
    with loading():
        from rocstar.train import main

    main.train(recipe, directory, resume=options.resume, rollouts=options.from_rollouts)
    if os.environ.get("RANK", "0") == "0":
        print(f"report: {directory / 'report.html'}")
        print(f"look into it: {shell_command('view', directory)}")
        if not options.only_sft:
            print(f"talk with it: {shell_command('chat', directory)}")
    return 0


def _rehearsal(options: argparse.Namespace) -> Any:
    """Return a function that rehearses the learner on GPUs of --gpu-memory-gb, or None without it."""
    if options.gpu_memory_gb is None:
        return None

    def learner(recipe: Recipe, machines: Any) -> Any:
        from rocstar.engine.progress.progress import working
        from rocstar.engine.progress.status import StatusLine
        from rocstar.train.rehearsal.rehearse import rehearse_recipe

        with StatusLine(), working("rehearsing the learner"):
            return rehearse_recipe(recipe, machines, options.gpu_memory_gb)

    return learner


def _words(options: argparse.Namespace, rest: list[str], *, resume: bool) -> list[str]:
    """Return the arguments that start the run which the options describe."""
    words = ["sft" if options.only_sft else "train", options.recipe, *rest]
    words += ["--output-dir", options.output_dir] if options.output_dir else []
    words += ["--from-rollouts", str(options.from_rollouts)] if options.from_rollouts else []
    return words + ["--resume"] * resume


def interrupted(options: argparse.Namespace, rest: list[str]) -> str:
    """Return the state of a run after Ctrl-C, and the command that resumes it; "" on ranks other than 0."""
    from rocstar.train.plan.plan import Machines, launch_commands
    from rocstar.train.record.run_directory import cold_start_of, complete_checkpoints
    from rocstar.train.serving.placement import BEFORE, NAMES

    if os.environ.get("RANK", "0") != "0":
        return ""
    if before := os.environ.get(BEFORE):  # the learner hid the servers' GPUs from itself
        os.environ.update(dict.fromkeys(NAMES, before))
    try:
        directory = directory_of(options, load_recipe(options.recipe, rest))
        again, *others = launch_commands(_words(options, rest, resume=True), Machines.parse(None))
    except ConfigError:
        return "interrupted"
    again += " (node 0; on each other node with its --node-rank)" if others else ""
    saved = complete_checkpoints(directory) or complete_checkpoints(cold_start_of(directory))
    if not directory.exists():
        return f"interrupted before anything was learned: nothing can be resumed, and {directory} was removed"
    if options.only_sft:
        left = f"the checkpoint {saved[-1]} is whole" if saved else "nothing can be resumed"
        return f"interrupted; {left}, and {directory} keeps the log"
    if saved:
        return f"interrupted; the checkpoint {saved[-1]} is whole, go on with --resume: {again}"
    return f"interrupted before the first checkpoint: nothing can be resumed; this begins again: {again}"


def rollout(options: argparse.Namespace, rest: list[str]) -> int:
    """Roll out and save trajectories, or with --dry-run check what that needs."""
    recipe = recipe_of(options.recipe, options.model, rest)
    if options.teacher is not None:
        return _record_teacher(recipe, options)
    if options.teacher_model or options.only_correct:
        raise ConfigError("--teacher-model and --only-correct need --teacher URL")
    if options.dry_run:
        from rocstar.train.evaluation.benchmarks.registry import load_tasks_of
        from rocstar.train.plan.dry_run import dry_run_alone

        return dry_run_alone(
            recipe, options.model, evaluates=False, out=options.out, as_json=options.json, built_in=load_tasks_of
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
        limit = options.limit or recipe.rl.tasks_per_step
        summary = roll_out_file(recipe, options.model, out=options.out, limit=limit, force=options.force)
    if options.json:
        print(json.dumps(summary))
    else:
        from rocstar.train.record.console_text import metrics_texts

        parts = [f"wrote {options.out}: {summary['ledger/generated']:.0f} trajectories"]
        print("  ".join(parts + metrics_texts(summary)))
    return 0


def _record_teacher(recipe: Recipe, options: argparse.Namespace) -> int:
    """Record a teacher's attempts at the tasks of the first stage."""
    if options.steps or options.resume or options.dry_run or not options.teacher_model:
        raise ConfigError("--teacher URL needs --teacher-model NAME, and takes no --steps, --resume and --dry-run")
    with loading():
        from rocstar.train.evaluation.rollouts import record_teacher

    limit, teacher = options.limit or recipe.rl.tasks_per_step, {"url": options.teacher, "name": options.teacher_model}
    kept = {"out": options.out, "only_correct": options.only_correct, "force": options.force}
    counts = record_teacher(recipe, options.model, limit=limit, **teacher, **kept)
    texts = "  ".join(f"{name} {count}" for name, count in counts.items())
    print(json.dumps(counts) if options.json else f"wrote {options.out}: {texts}")
    return 0
