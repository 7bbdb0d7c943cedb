"""The table of verbs: name, help, options, work, and the optional dependencies each needs.

The modules of a verb's work are imported when it runs: help and wrong options must not import torch.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from rocstar.train.cli import training
from rocstar.train.cli.training import RECIPE_HELP, TARGET_HELP, loading, number, refuse_unknown
from rocstar.train.data import data_command
from rocstar.train.evaluation import command as evaluation
from rocstar.train.plan.node_doctor import add_node_options, node_doctor
from rocstar.train.reading.analysis import analyse_command
from rocstar.train.reading.diagnosis import doctor_command
from rocstar.train.reading.view import command as view
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.served import verbs as served


@dataclass(frozen=True)
class Verb:
    """A verb of the command line."""

    name: str
    help: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[..., int]
    """Takes the parsed options, and the recipe fields that follow them unless `fields` is "never"; returns
    the exit code."""
    extra: str | None = None
    """The extra of pyproject.toml whose packages the verb needs; None if it needs none or checks itself."""
    fields: Literal["always", "checked by run", "never"] = "never"
    """Whether recipe fields may follow the options."""


def _add_compare(parser: argparse.ArgumentParser) -> None:
    text = "a run, a checkpoint, a folder of `rocstar eval`, or a table (CSV, JSON Lines: question, score)"
    parser.add_argument("a", type=Path, metavar="A", help=text)
    parser.add_argument("b", type=Path, metavar="B", help="as A; differences are B minus A")
    text = "of runs: the evaluation at this step; default: the last that both have"
    parser.add_argument("--step", type=number("a step", 0), metavar="N", help=text)
    text = "only this set; may be repeated"
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="NAME", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _compare(options: argparse.Namespace) -> int:
    from rocstar.train.evaluation.compare import compare_paths, format_comparison

    result = compare_paths(options.a, options.b, step=options.step, only=options.sets)
    print(json.dumps(result.as_json()) if options.json else format_comparison(result))
    return 0


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--step", type=number("a step", 1), required=True, help="the RL step, from 1")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _replay(options: argparse.Namespace) -> int:
    from rocstar.train.replay import replay

    result = replay(options.run, options.step)
    print(result.to_json() if options.json else result.to_text())
    return 0 if result.agrees else 1


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="run directory, or folder of an evaluation")
    text = "of an evaluation: also the questions of sets whose licence asks to hide them"
    parser.add_argument("--reveal", action="store_true", help=text)


def _write_eval_page(folder: Path) -> None:
    from rocstar.train.reading.view.export_page import write_eval_report

    write_eval_report(folder)


def _report(options: argparse.Namespace) -> int:
    from rocstar.train.reading.view.export_page import write_eval_report, write_report

    if (options.run / "results.json").is_file():
        print(write_eval_report(options.run, reveal=options.reveal))
        return 0
    if not (options.run / "metrics.jsonl").is_file():
        raise ConfigError(
            f"{str(options.run)!r} is neither a run directory, which has metrics.jsonl, nor the folder of an "
            "evaluation, which has results.json"
        )
    if options.reveal:
        raise ConfigError("--reveal is for the folder of an evaluation; a run's report shows its own tasks")
    print(write_report(options.run))
    return 0


def _add_records(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="run directory, or folder of records")
    parser.add_argument("--out", required=True, type=Path, help="a folder that is new or empty")
    text = "only this step; may be repeated"
    step = number("a step", 1)
    parser.add_argument("--step", dest="steps", type=step, action="append", metavar="N", help=text)


def _records(options: argparse.Namespace) -> int:
    from rocstar.engine.record.files import FRAMES, record_files
    from rocstar.engine.record.json_record import RecordError
    from rocstar.engine.record.reading import export_lines
    from rocstar.train.record.run_directory import TRAJECTORIES, make_folder

    inner = options.run / TRAJECTORIES
    folder = inner if inner.is_dir() else options.run
    present = record_files(folder)
    if missing := [step for step in options.steps or [] if step not in present]:
        steps = ", ".join(map(str, present)) or "none"
        raise ConfigError(f"{str(options.run)!r} has no records of step {missing[0]}; it has steps {steps}")
    if not present:
        is_begun = any(folder.glob(f"step_*{FRAMES}"))
        fix = "its step, or its server, has not ended: wait for it" if is_begun else "give a run directory"
        raise ConfigError(f"{str(options.run)!r} has no records of a finished step; {fix}")
    make_folder(options.out)
    try:
        for path in export_lines(folder, options.out, steps=options.steps):
            print(path)
    except RecordError as error:
        raise ConfigError(str(error)) from None
    return 0


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    doctor_command.add_arguments(parser)
    add_node_options(parser)


def _doctor(options: argparse.Namespace, rest: list[str]) -> int:
    if options.node is not None:
        if options.run is not None:
            raise ConfigError(f"{str(options.run)!r} and --node: give a run, or check this node")
        refuse_unknown(options.parser, rest, takes_fields=True)
        return node_doctor(options, rest)
    from rocstar.engine.record.json_record import RecordError

    refuse_unknown(options.parser, rest, takes_fields=False)
    if options.run is None:
        raise ConfigError("nothing to check: pass a run directory, or --node [RECIPE] to check this node")
    if not (options.run / "metrics.jsonl").is_file():
        raise ConfigError(f"{str(options.run)!r} is not a run directory: it has no metrics.jsonl; pass one")
    try:
        return doctor_command.examine(options.run, as_json=options.json)
    except RecordError as error:
        raise ConfigError(str(error)) from None


def _add_export(parser: argparse.ArgumentParser) -> None:
    text = "a checkpoint, a Hugging Face folder, or a run: its last complete checkpoint"
    parser.add_argument("source", type=Path, metavar="CHECKPOINT|RUN", help=text)
    text = "a folder that is new or empty; it appears when it is complete"
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=text)
    text = "hf: safetensors in bfloat16 with tokenizer, template and card; gguf: one file for llama.cpp"
    parser.add_argument("--format", choices=("hf", "gguf"), default="hf", help=text)


def _export(options: argparse.Namespace) -> int:
    from rocstar.train.learner.export.export import export

    print(f"wrote {export(options.source, options.out, form=options.format)}")
    return 0


def _add_grade(parser: argparse.ArgumentParser) -> None:
    text = 'lines of {"answer": ..., "text": ...}; - = standard input'
    parser.add_argument("rows", metavar="FILE", help=text)
    text = "strict, or the verdicts of the original's graders (reward.mode)"
    parser.add_argument("--mode", choices=("strict", "fused"), default="strict", help=text)


def _grade(options: argparse.Namespace) -> int:
    from rocstar.train.serving.grade import grade_file

    return grade_file(options.rows, mode=options.mode)


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("field", nargs="?", help="section.field, or a section; default: what everyone sets")
    parser.add_argument("--all", action="store_true", help="the fields for experts too")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a JSON list of all fields, or of the given")
    form.add_argument("--markdown", action="store_true", help="print the page docs/reference/recipe.md")


def _recipe(options: argparse.Namespace) -> int:
    from rocstar.train.recipe import describe

    if options.markdown:
        print(describe.markdown(), end="")
    elif options.json:
        print(describe.as_json(options.field))
    else:
        print(describe.in_full(options.field) if options.field else describe.short_table(experts=options.all))
    return 0


VERBS: Sequence[Verb] = (
    Verb(
        "train",
        "run a recipe: cold start, RL stages, evaluation",
        training.add_train,
        training.train,
        "train",
        "always",
    ),
    Verb(
        "sft",
        "run the cold start of a recipe, and its evaluation",
        partial(training.add_train, only_sft=True),
        training.train,
        "train",
        "always",
    ),
    Verb(
        "eval",
        "evaluate a run, a model or a recipe: avg@k, pass@k",
        partial(evaluation.add_arguments, recipe_help=TARGET_HELP, count=number("a number of tasks", 0)),
        partial(evaluation.run, loading=loading, write_page=_write_eval_page),
        "train",
        "always",
    ),
    Verb(
        "rollout",
        "roll out tasks and save the trajectories",
        training.add_rollout,
        training.rollout,
        "train",
        "always",
    ),
    Verb(
        "serve",
        "serve a model and its tools over OpenAI's protocol",
        partial(served.add_serve, recipe_help=RECIPE_HELP),
        partial(served.serve, loading=loading),
        "train",
        "always",
    ),
    Verb(
        "chat",
        "chat with a model and its tools in the terminal",
        partial(served.add_chat, recipe_help=RECIPE_HELP),
        partial(served.chat, loading=loading),
        None,
        "always",
    ),
    Verb("report", "write report.html of a run or an evaluation", _add_report, _report, "sim"),
    Verb("view", "show runs and trajectories in the browser, live", view.add_arguments, view.run, "view"),
    Verb("compare", "compare two evaluations of the same questions", _add_compare, _compare, "train"),
    Verb("replay", "recompute the loss of a step from its records", _add_replay, _replay, "train"),
    Verb(
        "analyse",
        "measure the policy's entropy by kind of token",
        analyse_command.add_arguments,
        analyse_command.run,
        "train",
    ),
    Verb("records", "write the trajectory records as JSON Lines", _add_records, _records, "sim"),
    Verb("doctor", "check a run, or this node before a run", _add_doctor, _doctor, "train", "checked by run"),
    Verb("export", "export a checkpoint as Hugging Face folder or GGUF", _add_export, _export, "train"),
    Verb("data", "build|check|show: training data, decontaminated", data_command.add_arguments, data_command.run),
    Verb("grade", "judge answers from a file of JSON Lines", _add_grade, _grade, "train"),
    Verb("recipe", "describe the fields of a recipe", _add_recipe, _recipe),
)
"""The verbs in the order of help."""
