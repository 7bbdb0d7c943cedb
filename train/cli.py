"""`rocstar VERB`. Parses before it imports torch; a mistake of the user is one message and exit code 2.

Exit codes: see ending.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rocstar.sandbox.console import parsed
from rocstar.sandbox.extras import lacking
from rocstar.train.data import data_command
from rocstar.train.evaluation import command as eval_command
from rocstar.train.plan.node_doctor import add_node_options, node_doctor
from rocstar.train.reading.diagnosis import doctor_command
from rocstar.train.reading.view import command as view_command
from rocstar.train.recipe.config import Recipe, with_eval_limits
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe, shipped_recipes
from rocstar.train.record.ending import guarded, run_interrupted
from rocstar.train.served import verbs as served_verbs

Verb = Callable[[argparse.Namespace, list[str]], int]
FIELDS = "fields are set with --section.field=value or --section.field value, switches with true or false"
WITH_RECIPE = ("train", "sft", "eval", "rollout", "serve", "chat")
EXTRAS = {
    **dict.fromkeys((*WITH_RECIPE[:-1], "replay", "compare", "grade"), "train"),
    **dict.fromkeys(("sim", "report", "records"), "sim"),
    **dict.fromkeys(("doctor", "export"), "train"),
    "view": "view",
    "import-gguf": "gguf",
}
"""The extra of each verb that needs one. `sandbox` needs only what rocstar itself brings, and so do help,
versions and checks of a recipe's fields; `chat` tells its own, which depend on whom one talks with."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["sandbox"]:
        from rocstar.sandbox.cli import main as sandbox_main

        return sandbox_main(arguments[1:])
    if arguments[:1] == ["sim"]:
        return guarded(lambda: _sim(arguments[1:]))
    if arguments[:1] == ["import-gguf"]:
        return guarded(lambda: _import_gguf(arguments[1:]))
    if arguments[:1] in [[verb] for verb in WITH_RECIPE]:
        arguments = _joined(arguments)
    options, rest = parsed(lambda: _parser().parse_known_args(arguments))
    verb: Verb | None = getattr(options, "verb", None)
    if verb is None:  # `rocstar --option sandbox`: the verb comes first
        return guarded(lambda: _fail(f"option {arguments[0]!r} is not known; the verb comes first"))
    runs = verb is _train and not options.dry_run
    return guarded(
        lambda: _with_extra(arguments[0], lambda: verb(options, rest)),
        resumes=runs and not options.only_sft,
        interrupted=lambda: _interrupted(options, rest, arguments) if runs else "interrupted",
    )


def _with_extra(verb: str, work: Callable[[], int]) -> int:
    """Do the work of a verb. Raises ConfigError first where the part of rocstar that it needs is missing."""
    if verb in EXTRAS and (missing := lacking(f"rocstar {verb}", EXTRAS[verb])):
        raise ConfigError(missing)
    return work()


def _sim(arguments: list[str]) -> int:
    def work() -> int:
        from rocstar.engine.sim.cli import main as sim_main

        return sim_main(arguments)

    return _with_extra("sim", work)


def _import_gguf(arguments: list[str]) -> int:
    from rocstar.train.learner.import_gguf import main as import_main

    if {"-h", "--help"} & set(arguments):
        return import_main(arguments)
    return _with_extra("import-gguf", lambda: import_main(arguments))


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
    _add_serve(verbs)
    report = _verb(verbs, "report", "write report.html of a run directory, or of an evaluation's folder")
    report.add_argument("run", type=Path, help="run directory, or folder of an evaluation")
    text = "of an evaluation: also the questions of sets whose licence asks that they are not shown"
    report.add_argument("--reveal", action="store_true", help=text)
    report.set_defaults(verb=_report)
    view = _verb(verbs, "view", "a local page of runs, live: curves, groups, trajectories and tokens")
    view_command.add_arguments(view)
    view.set_defaults(verb=_view)
    _add_compare(verbs)
    replay = _verb(verbs, "replay", "compute the loss of a step again from the run's records")
    replay.add_argument("run", type=Path, help="run directory")
    replay.add_argument("--step", type=_step, required=True, help="the RL step, from 1")
    replay.add_argument("--json", action="store_true", help="print one JSON object")
    replay.set_defaults(verb=_replay)
    _add_records(verbs)
    _add_doctor(verbs)
    _add_export(verbs)
    _add_data(verbs)
    _add_grade(verbs)
    _add_recipe(verbs)
    elsewhere = {
        "import-gguf": "turn a GGUF file into a Hugging Face directory",
        "sandbox": "run|serve|worker|mcp|doctor|bench: the tool environment alone",
        "sim": "replay a step through scheduling policies, without GPUs",
    }
    for name, text in elsewhere.items():
        verbs.add_parser(name, help=text, add_help=False)
    return parser


class _Version(argparse.Action):
    """Asks for the version only when it is wanted: git is a process."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        from rocstar.train.record.version import describe

        print(describe())
        parser.exit()


def _verb(verbs: Any, name: str, text: str) -> argparse.ArgumentParser:
    # Abbreviations would let a mistyped recipe field pass for an option.
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, allow_abbrev=False)
    return parser


RECIPE_HELP = f"a TOML file, or one of {', '.join(shipped_recipes())}; {FIELDS}"


def _recipe_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help=RECIPE_HELP)


def _add_grade(verbs: Any) -> None:
    parser = _verb(verbs, "grade", "the judge alone: JSON Lines of answer and text in, reward and method out")
    parser.add_argument(
        "rows", metavar="FILE", help='lines of {"answer": ..., "text": ...}; - = standard input'
    )
    text = "strict, or the verdicts of the original's graders (reward.mode)"
    parser.add_argument("--mode", choices=("strict", "fused"), default="strict", help=text)
    parser.set_defaults(verb=_grade)


def _grade(options: argparse.Namespace, rest: list[str]) -> int:
    if rest:
        raise ConfigError(f"option {rest[0]!r} is not known; `rocstar grade FILE` takes only --mode")
    from rocstar.train.serving.grade import grade

    return grade(options.rows, mode=options.mode)


def _add_records(verbs: Any) -> None:
    parser = _verb(verbs, "records", "write the trajectory records of a run as JSON Lines, a file per step")
    parser.add_argument("run", type=Path, help="run directory, or folder of records")
    parser.add_argument("--out", required=True, type=Path, help="a folder that is new or empty")
    text = "only this step; may be repeated"
    parser.add_argument("--step", dest="steps", type=_step, action="append", metavar="N", help=text)
    parser.set_defaults(verb=_records)


def _records(options: argparse.Namespace, rest: list[str]) -> int:
    from rocstar.engine.record.files import record_files
    from rocstar.engine.record.reading import RecordError, export_lines
    from rocstar.train.record.run_directory import TRAJECTORIES
    from rocstar.train.record.targets import make_folder

    if rest:
        raise ConfigError(f"option {rest[0]!r} is not known; `rocstar records RUN --out FOLDER` takes --step")
    inner = options.run / TRAJECTORIES
    folder = inner if inner.is_dir() else options.run
    there = record_files(folder)
    if missing := [step for step in options.steps or [] if step not in there]:
        raise ConfigError(f"{str(options.run)!r} has no records of step {missing[0]}; it has {list(there)}")
    if not there:
        raise ConfigError(f"{str(options.run)!r} has no records of a finished step; give a run directory")
    make_folder(options.out)
    try:
        for path in export_lines(folder, options.out, steps=options.steps):
            print(path)
    except RecordError as error:
        raise ConfigError(str(error)) from None
    return 0


def _add_doctor(verbs: Any) -> None:
    parser = _verb(verbs, "doctor", "what is wrong with a run, or with this node before one, and what to do")
    doctor_command.add_arguments(parser)
    add_node_options(parser)
    parser.set_defaults(verb=_doctor)


def _doctor(options: argparse.Namespace, rest: list[str]) -> int:
    if options.node is not None:
        if options.run is not None:
            raise ConfigError(f"{str(options.run)!r} and --node: look at a run, or at this node")
        _check_fields(rest)
        return node_doctor(options, rest)
    from rocstar.engine.record.reading import RecordError
    from rocstar.train.record.manifest import ManifestError
    from rocstar.train.record.metrics import MetricsFileError

    if rest:
        raise ConfigError(f"option {rest[0]!r} is not known; `rocstar doctor RUN` takes only --json")
    if options.run is None:
        raise ConfigError("what is to be looked at? rocstar doctor RUN, or rocstar doctor --node [RECIPE]")
    if not (options.run / "metrics.jsonl").is_file():
        raise ConfigError(f"{str(options.run)!r} is no run directory: it has no metrics.jsonl; give one")
    try:
        return doctor_command.examine(options.run, as_json=options.json)
    except (MetricsFileError, ManifestError, RecordError) as error:
        raise ConfigError(str(error)) from None


def _add_export(verbs: Any) -> None:
    parser = _verb(verbs, "export", "a checkpoint as others load it: a Hugging Face folder, or a GGUF file")
    text = "a checkpoint, a Hugging Face folder, or a run: its last complete checkpoint"
    parser.add_argument("source", type=Path, metavar="CHECKPOINT|RUN", help=text)
    text = "a folder that is new or empty; it appears whole or not at all"
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=text)
    text = "hf: safetensors in bfloat16 with tokenizer, template and card; gguf: one file for llama.cpp"
    parser.add_argument("--format", choices=("hf", "gguf"), default="hf", help=text)
    parser.set_defaults(verb=_export)


def _export(options: argparse.Namespace, rest: list[str]) -> int:
    from rocstar.train.learner.export.export import export

    if rest:
        raise ConfigError(f"option {rest[0]!r} is not known; see `rocstar export --help`")
    print(f"wrote {export(options.source, options.out, form=options.format)}")
    return 0


def _add_data(verbs: Any) -> None:
    parser = _verb(verbs, "data", "check: tasks against the questions of evaluation sets")
    data_command.add_arguments(parser)
    parser.set_defaults(verb=_data)


def _data(options: argparse.Namespace, rest: list[str]) -> int:
    if rest:
        raise ConfigError(f"option {rest[0]!r} is not known; see `rocstar data check --help`")
    return data_command.run(options)


def _add_recipe(verbs: Any) -> None:
    parser = _verb(verbs, "recipe", "what the fields of a recipe mean, with default, unit and bounds")
    parser.add_argument("field", nargs="?", help="section.field, or a section; default: what everyone sets")
    parser.add_argument("--all", action="store_true", help="the fields for experts too")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a JSON list of all fields, or of the given")
    form.add_argument("--markdown", action="store_true", help="print the page docs/reference/recipe.md")
    parser.set_defaults(verb=_recipe)


def _recipe(options: argparse.Namespace, rest: list[str]) -> int:
    from rocstar.train.recipe import describe

    if rest:
        raise ConfigError(f"option {rest[0]!r} is not known; `rocstar recipe` takes a field's name")
    if options.markdown:
        print(describe.markdown(), end="")
    elif options.json:
        print(describe.as_json(options.field))
    else:
        print(describe.in_full(options.field) if options.field else describe.short_table(experts=options.all))
    return 0


def _add_train(verbs: Any) -> None:
    parser = _verb(verbs, "train", "run a whole recipe: cold start, RL stages, evaluation")
    parser.epilog = "Every field of a recipe: rocstar recipe."
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
    text = "of --dry-run: nodes and GPUs on each, 8x8 for example; default: this process, or torchrun's"
    parser.add_argument("--world", metavar="NODESxGPUS", help=text)
    text = "of --dry-run: rehearse the learner on GPUs of M GiB that are not there; refuse what does not fit"
    parser.add_argument("--gpu-memory-gb", type=_memory, metavar="M", help=text)
    parser.add_argument("--json", action="store_true", help="of --dry-run: print one JSON object")


def _add_sft(verbs: Any) -> None:
    parser = _verb(verbs, "sft", "the cold start alone, with the evaluation after it")
    _recipe_argument(parser)
    parser.add_argument("--output-dir", help="run directory; default runs/NAME")
    _add_dry_run(parser)
    parser.set_defaults(verb=_train, resume=False, from_rollouts=None, only_sft=True)


def _add_eval(verbs: Any) -> None:
    parser = _verb(verbs, "eval", "avg@k and pass@k of a model on sets of tasks, kept as evidence")
    eval_command.add_arguments(parser, recipe_help=RECIPE_HELP, count=_count)
    parser.set_defaults(verb=_eval)


def _add_serve(verbs: Any) -> None:
    parser = _verb(verbs, "serve", "an OpenAI-compatible endpoint of an agent, whose tools run here")
    served_verbs.add_serve(parser, recipe_help=RECIPE_HELP)
    parser.set_defaults(verb=_serve)
    parser = _verb(verbs, "chat", "talk with a model in the terminal, and see its tools at work")
    served_verbs.add_chat(parser, recipe_help=RECIPE_HELP)
    parser.set_defaults(verb=_chat)


def _add_compare(verbs: Any) -> None:
    parser = _verb(
        verbs, "compare", "which of two evaluations of the same questions is better, and how surely"
    )
    text = (
        "a run, a checkpoint, what `rocstar eval --out` wrote, or a table (CSV, JSON Lines: question, score)"
    )
    parser.add_argument("a", type=Path, metavar="A", help=text)
    parser.add_argument("b", type=Path, metavar="B", help="the same; differences are B minus A")
    text = "of runs: the evaluation at this step; default: the last that both have"
    parser.add_argument("--step", type=_count_steps, metavar="N", help=text)
    text = "only this set; may be repeated"
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="NAME", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(verb=_compare)


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


def _memory(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (memory := float(text)) < 1e6:
            return memory
    raise argparse.ArgumentTypeError(f"{text!r} is not the memory of a GPU in GiB, 80 or 192 for example")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tasks, 0 or more")
    return int(text)


def _positive(text: str) -> int:
    if not _count(text):
        raise argparse.ArgumentTypeError("0 tasks give no trajectory; take 1 or more")
    return int(text)


def _count_steps(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a step, 0 or more")
    return int(text)


def _step(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a step, 1 or more")
    return int(text)


def _check_fields(rest: list[str]) -> None:
    for option in rest:
        field = option.removeprefix("--").partition("=")[0]
        if not option.startswith("--") or ("." not in field and field not in Recipe.model_fields):
            raise ConfigError(
                f"option {option!r} is not known; recipe fields are set with --section.field=value"
            )


def _load(options: argparse.Namespace, rest: list[str]) -> Recipe:
    _check_fields(rest)
    return load_recipe(options.recipe, rest)


def _without_stages(recipe: Recipe) -> Recipe:
    """The cold start alone; its evaluation keeps the limits that the last stage would have given it."""
    return with_eval_limits(recipe).model_copy(update={"stages": []})


@contextlib.contextmanager
def _loading() -> Iterator[None]:
    """Show the import of torch, which takes seconds, on a busy machine a minute; of one rank is enough."""
    from rocstar.engine.progress.progress import working
    from rocstar.engine.progress.status import StatusLine

    if os.environ.get("RANK", "0") != "0":
        yield
        return
    with StatusLine(), working("importing torch"):
        yield


def _train(options: argparse.Namespace, rest: list[str]) -> int:
    recipe = _load(options, rest)
    if options.only_sft:
        recipe = _without_stages(recipe)
    directory = _directory(options, recipe)
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
    with _loading():
        from rocstar.train.main import train

    train(recipe, directory, resume=options.resume, rollouts=options.from_rollouts)
    if os.environ.get("RANK", "0") == "0":
        print(f"report: {directory / 'report.html'}")
        print(f"look into it: rocstar view {shlex.quote(str(directory))}")
        if not options.only_sft:
            print(f"talk with it: rocstar chat {shlex.quote(str(directory))}")
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


def _directory(options: argparse.Namespace, recipe: Recipe) -> Path:
    return Path(options.output_dir or f"runs/{recipe.run.name}")


def _eval(options: argparse.Namespace, rest: list[str]) -> int:
    _check_fields(rest)
    return eval_command.run(options, rest, loading=_loading)


def _view(options: argparse.Namespace, rest: list[str]) -> int:
    if rest:
        raise ConfigError(f"option {rest[0]!r} is not known; see `rocstar view --help`")
    return view_command.run(options)


def _serve(options: argparse.Namespace, rest: list[str]) -> int:
    _check_fields(rest)
    return served_verbs.serve(options, rest, loading=_loading)


def _chat(options: argparse.Namespace, rest: list[str]) -> int:
    _check_fields(rest)
    return served_verbs.chat(options, rest, loading=_loading)


def _compare(options: argparse.Namespace, rest: list[str]) -> int:
    from rocstar.train.evaluation.compare import as_text, compare_paths

    if rest:
        raise ConfigError(f"option {rest[0]!r} is not known; see `rocstar compare --help`")
    found = compare_paths(options.a, options.b, step=options.step, only=options.sets)
    print(json.dumps(found.as_json()) if options.json else as_text(found))
    return 0


def _rollout(options: argparse.Namespace, rest: list[str]) -> int:
    recipe = _load(options, rest)
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
    with _loading():
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


def _replay(options: argparse.Namespace, rest: list[str]) -> int:
    from rocstar.train.replay import replay

    if rest:
        raise ConfigError(f"option {rest[0]!r} is not known; `rocstar replay RUN --step N` takes only --json")
    result = replay(options.run, options.step)
    print(result.to_json() if options.json else result.to_text())
    return 0 if result.agrees else 1


def _report(options: argparse.Namespace, rest: list[str]) -> int:
    from rocstar.train.record.metrics import MetricsFileError
    from rocstar.train.record.report.report import ReportError, write_report

    if rest:
        raise ConfigError(f"option {rest[0]!r} is not known; `rocstar report FOLDER` takes only --reveal")
    if (options.run / "results.json").is_file():
        from rocstar.train.evaluation.report.eval_report import write_eval_report

        print(write_eval_report(options.run, reveal=options.reveal))
        return 0
    if not (options.run / "metrics.jsonl").is_file():
        raise ConfigError(
            f"{str(options.run)!r} is neither a run directory, which has metrics.jsonl, nor the folder of an "
            "evaluation, which has results.json"
        )
    if options.reveal:
        raise ConfigError("--reveal is of an evaluation's folder; a run's report shows its own tasks")
    try:
        print(write_report(options.run))
    except (ReportError, MetricsFileError) as error:
        raise ConfigError(str(error)) from None
    return 0
