"""`rocstar train`, `rocstar sft`: a whole recipe, or its cold start alone; --dry-run: what it would need."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
from pathlib import Path
from typing import Any

from rocstar.train.cli.arguments import directory_of, load, loading, new_verb, recipe_argument
from rocstar.train.cli.own_command import own_command
from rocstar.train.recipe.config import Recipe, with_eval_limits
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.ending import run_interrupted


def add(verbs: Any) -> None:
    parser = new_verb(verbs, "train", "run a whole recipe: cold start, RL stages, evaluation")
    parser.epilog = "Every field of a recipe: rocstar recipe."
    recipe_argument(parser)
    parser.add_argument("--output-dir", help="run directory; default runs/NAME")
    parser.add_argument("--resume", action="store_true", help="go on from the last complete checkpoint")
    text = "learn from the trajectories of another run or of `rocstar rollout`; nothing is rolled out"
    parser.add_argument("--from-rollouts", type=Path, metavar="PATH", help=text)
    _add_dry_run(parser)
    parser.set_defaults(verb=run, only_sft=False)


def add_sft(verbs: Any) -> None:
    parser = new_verb(verbs, "sft", "the cold start alone, with the evaluation after it")
    recipe_argument(parser)
    parser.add_argument("--output-dir", help="run directory; default runs/NAME")
    _add_dry_run(parser)
    parser.set_defaults(verb=run, resume=False, from_rollouts=None, only_sft=True)


def _add_dry_run(parser: argparse.ArgumentParser) -> None:
    text = "check model, data, engine, output directory and disk, and print recipe and plan; build nothing"
    parser.add_argument("--dry-run", action="store_true", help=text)
    text = (
        "of --dry-run: nodes and GPUs on each, 8x8 for example, or 3x8+5x8 where the last five only serve; "
    )
    text += "default: this process, or torchrun's"
    parser.add_argument("--world", metavar="NODESxGPUS", help=text)
    text = "of --dry-run: rehearse the learner on GPUs of M GiB that are not there; refuse what does not fit"
    parser.add_argument("--gpu-memory-gb", type=_memory, metavar="M", help=text)
    parser.add_argument("--json", action="store_true", help="of --dry-run: print one JSON object")


def _memory(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (memory := float(text)) < 1e6:
            return memory
    raise argparse.ArgumentTypeError(f"{text!r} is not the memory of a GPU in GiB, 80 or 192 for example")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    recipe = load(options, rest)
    if options.only_sft:
        recipe = without_stages(recipe)
    directory = directory_of(options, recipe)
    if options.dry_run:
        from rocstar.train.evaluation.benchmarks.registry import load_tasks_of
        from rocstar.train.plan.dry_run import dry_run_of_training

        return dry_run_of_training(
            recipe,
            options.recipe,
            directory,
            world=options.world,
            resume=options.resume,
            rollouts=options.from_rollouts,
            as_json=options.json,
            built_in=load_tasks_of,
            learner=_rehearsal(options),
        )
    if options.gpu_memory_gb is not None:
        raise ConfigError("--gpu-memory-gb is of a rehearsal; it needs --dry-run")
    if options.json:
        raise ConfigError("--json is of --dry-run; a run writes metrics.jsonl")
    if options.world:
        raise ConfigError("--world describes a plan; it needs --dry-run (torchrun says how many ranks run)")
    with loading():
        from rocstar.train.main import train

    train(recipe, directory, resume=options.resume, rollouts=options.from_rollouts)
    if os.environ.get("RANK", "0") == "0":
        print(f"report: {directory / 'report.html'}")
        rocstar = own_command()
        print(f"look into it: {rocstar} view {shlex.quote(str(directory))}")
        if not options.only_sft:
            print(f"talk with it: {rocstar} chat {shlex.quote(str(directory))}")
    return 0


def _rehearsal(options: argparse.Namespace) -> Any:
    """What rehearses the learner for GPUs of the given memory; None where none is given."""
    if options.gpu_memory_gb is None:
        return None

    def learner(recipe: Recipe, machines: Any) -> Any:
        from rocstar.engine.progress.progress import working
        from rocstar.engine.progress.status import StatusLine
        from rocstar.train.rehearsal.rehearse import rehearse_recipe

        with StatusLine(), working("rehearsing the learner"):
            return rehearse_recipe(recipe, machines, options.gpu_memory_gb)

    return learner


def without_stages(recipe: Recipe) -> Recipe:
    """The cold start alone; its evaluation keeps the limits that the last stage would have given it."""
    return with_eval_limits(recipe).model_copy(update={"stages": []})


def interrupted(options: argparse.Namespace, rest: list[str], arguments: list[str]) -> str:
    try:
        directory = directory_of(options, load(options, rest))
    except ConfigError:
        return "interrupted"
    return run_interrupted(directory, arguments, resumes=not options.only_sft)
