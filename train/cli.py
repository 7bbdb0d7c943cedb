"""`rocstar VERB`. Parses before it imports torch; a mistake of the user is one message and exit code 2.

Exit codes: see ending.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rocstar.sandbox.console import parsed
from rocstar.train.config import ConfigError, Recipe, load_recipe, shipped_recipes, with_eval_limits
from rocstar.train.ending import guarded, run_interrupted

Verb = Callable[[argparse.Namespace, list[str]], int]
FIELDS = "fields are set with --section.field=value or --section.field value, switches with true or false"
WITH_RECIPE = ("train", "sft", "eval", "rollout")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["sandbox"]:
        from rocstar.sandbox.cli import main as sandbox_main

        return sandbox_main(arguments[1:])
    if arguments[:1] == ["sim"]:
        from rocstar.engine.sim.cli import main as sim_main

        return guarded(lambda: sim_main(arguments[1:]))
    if arguments[:1] == ["import-gguf"]:
        from rocstar.train.import_gguf import main as import_main

        return guarded(lambda: import_main(arguments[1:]))
    if arguments[:1] in [[verb] for verb in WITH_RECIPE]:
        arguments = _joined(arguments)
    options, rest = parsed(lambda: _parser().parse_known_args(arguments))
    verb: Verb | None = getattr(options, "verb", None)
    if verb is None:  # `rocstar --option sandbox`: the verb comes first
        return guarded(lambda: _fail(f"option {arguments[0]!r} is not known; the verb comes first"))
    runs = verb is _train and not options.dry_run
    return guarded(
        lambda: verb(options, rest),
        resumes=runs and not options.only_sft,
        interrupted=lambda: _interrupted(options, rest, arguments) if runs else "interrupted",
    )


def _joined(arguments: list[str]) -> list[str]:
    """`--rl.lr 1e-3` as `--rl.lr=1e-3`: a recipe field always takes a value, a switch too (`... true`)."""
    joined: list[str] = []
    for argument in arguments:
        last = joined[-1] if joined else ""
        if last.startswith("--") and "." in last and "=" not in last and not argument.startswith("--"):
            joined[-1] = f"{last}={argument}"
        else:
            joined.append(argument)
    return joined


def _interrupted(options: argparse.Namespace, rest: list[str], arguments: list[str]) -> str:
    try:
        directory = _directory(options, _load(options, rest))
    except ConfigError:
        return "interrupted"
    return run_interrupted(directory, arguments, resumes=not options.only_sft)


def _fail(message: str) -> int:
    raise ConfigError(message)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rocstar",
        description="Train language models to solve problems with Python.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print version and commit")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    _add_train(verbs)
    _add_sft(verbs)
    _add_eval(verbs)
    _add_rollout(verbs)
    report = _verb(verbs, "report", "write report.html of a run directory")
    report.add_argument("run", type=Path, help="run directory")
    report.set_defaults(verb=_report)
    replay = _verb(verbs, "replay", "compute the loss of a step again from the run's records")
    replay.add_argument("run", type=Path, help="run directory")
    replay.add_argument("--step", type=_step, required=True, help="the RL step, from 1")
    replay.add_argument("--json", action="store_true", help="print one JSON object")
    replay.set_defaults(verb=_replay)
    elsewhere = {
        "import-gguf": "turn a GGUF file into a Hugging Face directory",
        "sandbox": "run|serve|worker|doctor|bench: the tool environment alone",
        "sim": "replay a step through scheduling policies, without GPUs",
    }
    for name, text in elsewhere.items():
        verbs.add_parser(name, help=text, add_help=False)
    return parser


class _Version(argparse.Action):
    """Asks for the version only when it is wanted: git is a process."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        from rocstar.train.version import describe

        print(describe())
        parser.exit()


def _verb(verbs: Any, name: str, text: str) -> argparse.ArgumentParser:
    # Abbreviations would let a mistyped recipe field pass for an option.
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, allow_abbrev=False)
    return parser


def _recipe_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help=f"a TOML file, or one of {', '.join(shipped_recipes())}; {FIELDS}")


def _add_train(verbs: Any) -> None:
    parser = _verb(verbs, "train", "run a whole recipe: cold start, RL stages, evaluation")
    _recipe_argument(parser)
    parser.add_argument("--output-dir", help="run directory; default runs/NAME")
    parser.add_argument("--resume", action="store_true", help="go on from the last complete checkpoint")
    text = "learn from the trajectories of another run or of `rocstar rollout`; nothing is rolled out"
    parser.add_argument("--from-rollouts", type=Path, metavar="PATH", help=text)
    _add_dry_run(parser)
    parser.set_defaults(verb=_train, only_sft=False)


def _add_dry_run(parser: argparse.ArgumentParser) -> None:
    text = "check model, data, engine, output directory and disk, and print recipe and plan; build nothing"
    parser.add_argument("--dry-run", action="store_true", help=text)
    text = "of --dry-run: nodes and ranks on each, 8x8 for example; default: this process, or torchrun's"
    parser.add_argument("--world", metavar="NODESxRANKS", help=text)
    parser.add_argument("--json", action="store_true", help="of --dry-run: print one JSON object")


def _add_sft(verbs: Any) -> None:
    parser = _verb(verbs, "sft", "the cold start alone, with the evaluation after it")
    _recipe_argument(parser)
    parser.add_argument("--output-dir", help="run directory; default runs/NAME")
    _add_dry_run(parser)
    parser.set_defaults(verb=_train, resume=False, from_rollouts=None, only_sft=True)


def _add_eval(verbs: Any) -> None:
    parser = _verb(verbs, "eval", "avg@k and pass@k of a model on the recipe's held-out tasks")
    _recipe_argument(parser)
    parser.add_argument("--model", help="Hugging Face directory, checkpoint, or hub name; default model.path")
    parser.add_argument("--limit", type=_count, default=0, help="use only the first so many tasks; 0 = all")
    text = "a new folder for every attempt (attempts.jsonl), summary.json, config.toml and manifest.json"
    parser.add_argument("--out", type=Path, metavar="DIR", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    text = "check model, data and engine; load nothing large"
    parser.add_argument("--dry-run", action="store_true", help=text)
    parser.set_defaults(verb=_eval)


def _add_rollout(verbs: Any) -> None:
    parser = _verb(verbs, "rollout", "roll out groups on the first stage's tasks and save the trajectories")
    _recipe_argument(parser)
    parser.add_argument("--model", help="Hugging Face directory, checkpoint, or hub name; default model.path")
    text = "a JSONL file for one step, or with --steps a folder for `train --from-rollouts`"
    parser.add_argument("--out", required=True, type=Path, help=text)
    number = parser.add_mutually_exclusive_group()
    number.add_argument("--limit", type=_positive, default=8, help="number of tasks of the one step")
    number.add_argument("--steps", type=_step, help="so many steps of rl.tasks_per_step tasks")
    text = "with --steps: roll out the steps that the folder does not have yet"
    parser.add_argument("--resume", action="store_true", help=text)
    text = "replace the file --out if there is one; it stays until the new one is whole"
    parser.add_argument("--force", action="store_true", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    text = "check model, data and engine and --out; load nothing large"
    parser.add_argument("--dry-run", action="store_true", help=text)
    parser.set_defaults(verb=_rollout)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tasks, 0 or more")
    return int(text)


def _positive(text: str) -> int:
    if not _count(text):
        raise argparse.ArgumentTypeError("0 tasks give no trajectory; take 1 or more")
    return int(text)


def _step(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a step, 1 or more")
    return int(text)


def _load(options: argparse.Namespace, rest: list[str]) -> Recipe:
    for option in rest:
        if not option.startswith("--") or "." not in option.partition("=")[0]:
            raise ConfigError(
                f"option {option!r} is not known; recipe fields are set with --section.field=value"
            )
    return load_recipe(options.recipe, rest)


def _without_stages(recipe: Recipe) -> Recipe:
    """The cold start alone; its evaluation keeps the limits that the last stage would have given it."""
    return with_eval_limits(recipe).model_copy(update={"stages": []})


@contextlib.contextmanager
def _loading() -> Iterator[None]:
    """Show the import of torch, which takes seconds, on a busy machine a minute; of one rank is enough."""
    from rocstar.engine.progress import working
    from rocstar.engine.status import Status

    if os.environ.get("RANK", "0") != "0":
        yield
        return
    with Status(), working("importing torch"):
        yield


def _train(options: argparse.Namespace, rest: list[str]) -> int:
    recipe = _load(options, rest)
    if options.only_sft:
        recipe = _without_stages(recipe)
    directory = _directory(options, recipe)
    if options.dry_run:
        from rocstar.train.dry_run import dry_run_of_training

        return dry_run_of_training(
            recipe,
            options.recipe,
            directory,
            world=options.world,
            resume=options.resume,
            rollouts=options.from_rollouts,
            as_json=options.json,
        )
    if options.json:
        raise ConfigError("--json is of --dry-run; a run writes metrics.jsonl")
    if options.world:
        raise ConfigError("--world describes a plan; it needs --dry-run (torchrun says how many ranks run)")
    with _loading():
        from rocstar.train.main import train

    train(recipe, directory, resume=options.resume, rollouts=options.from_rollouts)
    if os.environ.get("RANK", "0") == "0":
        print(f"report: {directory / 'report.html'}")
    return 0


def _directory(options: argparse.Namespace, recipe: Recipe) -> Path:
    return Path(options.output_dir or f"runs/{recipe.run.name}")


def _eval(options: argparse.Namespace, rest: list[str]) -> int:
    recipe = _load(options, rest)
    if options.dry_run:
        from rocstar.train.dry_run import dry_run_alone, what_eval_needs

        return dry_run_alone(
            recipe, options.model, what=what_eval_needs, out=options.out, as_json=options.json
        )
    with _loading():
        from rocstar.train.alone import evaluate_model

    found = evaluate_model(recipe, options.model, limit=options.limit, out=options.out)
    result = found.result
    if options.json:
        print(json.dumps(result.metrics("heldout") | {"by_source": result.by_source} | found.facts()))
        return 0
    print(f"avg@{result.k}   {result.avg:.3f}  95% interval [{result.ci_low:.3f}, {result.ci_high:.3f}]")
    over = f"over {result.num_tasks} tasks, {result.failed} attempts failed"
    print(f"pass@{result.k}  {result.pass_at_k:.3f}  {over}")
    for source, value in result.by_source.items():
        print(f"  {source}  {value:.3f}")
    return 0


def _rollout(options: argparse.Namespace, rest: list[str]) -> int:
    recipe = _load(options, rest)
    if options.dry_run:
        from rocstar.train.dry_run import dry_run_alone, what_rollout_needs

        out, as_json = options.out, options.json
        return dry_run_alone(recipe, options.model, what=what_rollout_needs, out=out, as_json=as_json)
    with _loading():
        from rocstar.train.rollouts import roll_out_file, roll_out_steps

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


def _replay(options: argparse.Namespace, rest: list[str]) -> int:
    from rocstar.train.replay import replay

    if rest:
        raise ConfigError(f"option {rest[0]!r} is not known; `rocstar replay RUN --step N` takes only --json")
    result = replay(options.run, options.step)
    print(result.to_json() if options.json else result.to_text())
    return 0 if result.agrees else 1


def _report(options: argparse.Namespace, rest: list[str]) -> int:
    from rocstar.train.metrics import MetricsFileError
    from rocstar.train.report import ReportError, write_report

    if rest:
        raise ConfigError(f"option {rest[0]!r} is not known; `rocstar report RUN` takes none")
    if not (options.run / "metrics.jsonl").is_file():
        raise ConfigError(f"{str(options.run)!r} is no run directory: it has no metrics.jsonl")
    try:
        print(write_report(options.run))
    except (ReportError, MetricsFileError) as error:
        raise ConfigError(str(error)) from None
    return 0
