"""The table of verbs: verbs.toml has their help and options, this file their work.

The modules of a verb's work are imported when it runs: help and wrong options must not import torch.
"""

import argparse
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rocstar.sandbox.command_line import CommandParser, add_options
from rocstar.sandbox.http.listening import add_access_log_options, add_listening_options
from rocstar.train.cli import training
from rocstar.train.cli.training import RECIPE_HELP, TARGET_HELP, loading, refuse_unknown
from rocstar.train.data import data_command
from rocstar.train.evaluation import command as evaluation
from rocstar.train.plan.node_doctor import node_doctor
from rocstar.train.reading.analysis import analyse_command
from rocstar.train.reading.diagnosis import doctor_command
from rocstar.train.reading.view import command as view
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.served import verbs as served


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A verb of the command line, as verbs.toml describes it."""

    name: str
    run: Callable[..., int]
    """Takes the parsed options, and the recipe fields that follow them unless `fields` is "never"; returns
    the exit code."""
    help: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Entries of `add_options`, or "common"."""
    verbs: Mapping[str, Any] = field(default_factory=dict)
    """The verbs below this one: `help` and `options` of each."""
    epilog: str | None = None
    extra: str | None = None
    """The extra of pyproject.toml whose packages the verb needs; None if it needs none or checks itself."""
    fields: Literal["always", "checked by run", "never"] = "never"
    """Whether recipe fields may follow the options."""
    listens: int | None = None
    """The default port of a verb with the options of a listening server."""
    defaults: Mapping[str, Any]

    def add_to(self, verbs: "argparse._SubParsersAction[CommandParser]") -> None:
        """Add the parser of the verb."""
        # With abbreviations, a misspelt recipe field could be taken for an option.
        parser = verbs.add_parser(self.name, help=self.help, epilog=self.epilog, allow_abbrev=False)
        _add_options(parser, self.options)
        if self.listens is not None:
            add_listening_options(parser, self.listens)
            add_access_log_options(parser)
        if self.verbs:
            below = parser.add_subparsers(required=True, metavar="VERB", dest=f"{self.name}_verb")
            for name, entry in self.verbs.items():
                _add_options(below.add_parser(name, help=entry["help"], allow_abbrev=False), entry["options"])
        parser.set_defaults(verb=self, parser=parser, **self.defaults)


def _add_options(parser: argparse.ArgumentParser, options: Mapping[str, Any]) -> None:
    own = {name: entry for name, entry in options.items() if entry != "common"}
    common = {name: _COMMON[name] for name in options if name not in own}
    add_options(parser, own | common, {"recipe": RECIPE_HELP, "target": TARGET_HELP})


def _compare(options: argparse.Namespace) -> int:
    from rocstar.train.evaluation.compare import compare_paths, format_comparison

    result = compare_paths(options.a, options.b, step=options.step, only=options.sets)
    print(json.dumps(result.as_json()) if options.json else format_comparison(result))
    return 0


def _replay(options: argparse.Namespace) -> int:
    from rocstar.train.replay import replay

    result = replay(options.run, options.step)
    print(result.to_json() if options.json else result.to_text())
    return 0 if result.agrees else 1


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


def _export(options: argparse.Namespace) -> int:
    from rocstar.train.learner.export.export import export

    print(f"wrote {export(options.source, options.out, form=options.format)}")
    return 0


def _grade(options: argparse.Namespace) -> int:
    from rocstar.train.serving.grade import grade_file

    return grade_file(options.rows, mode=options.mode)


def _recipe(options: argparse.Namespace) -> int:
    from rocstar.train.recipe import describe

    if options.markdown:
        print(describe.markdown(), end="")
    elif options.json:
        print(describe.as_json(options.field))
    else:
        print(describe.in_full(options.field) if options.field else describe.short_table(experts=options.all))
    return 0


_TABLE: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("verbs.toml").read_text(encoding="utf-8"))
_COMMON = _TABLE.pop("common")["options"]
_WORK: Mapping[str, Callable[..., int]] = {
    "train": training.train,
    "sft": training.train,
    "eval": partial(evaluation.run, loading=loading, write_page=_write_eval_page),
    "rollout": training.rollout,
    "serve": partial(served.serve, loading=loading),
    "chat": partial(served.chat, loading=loading),
    "report": _report,
    "view": view.run,
    "compare": _compare,
    "replay": _replay,
    "analyse": analyse_command.run,
    "records": _records,
    "doctor": _doctor,
    "export": _export,
    "data": data_command.run,
    "grade": _grade,
    "recipe": _recipe,
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "train": {"only_sft": False},
    "sft": {"only_sft": True, "resume": False, "from_rollouts": None},
}
"""The values of options that a verb does not have."""
VERBS = tuple(
    Verb(name=name, run=_WORK[name], defaults=_DEFAULTS.get(name, {}), **entry) for name, entry in _TABLE.items()
)
"""The verbs in the order of help."""
