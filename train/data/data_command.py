"""`rocstar data build|check|show`: arguments and output."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

_SOURCE = "JSONL or Parquet, a folder of them, or hub:OWNER/NAME"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verbs below `data`."""
    verbs = parser.add_subparsers(required=True, metavar="VERB", dest="data_verb")
    text = "tasks or conversations from sources: cleaned, decontaminated, with their provenance"
    build = verbs.add_parser("build", help=text, allow_abbrev=False)
    text = "TOML of sources, filters and mixture, or the name of a shipped one"
    build.add_argument("file", type=Path, metavar="FILE", help=text)
    text = "a folder: new, empty, or of a killed build, which is resumed"
    build.add_argument("--out", type=Path, metavar="FOLDER", help=text)
    text = "leave out rows whose licence is not known to allow commercial use"
    build.add_argument("--commercial", action="store_true", help=text)
    build.add_argument("--dry-run", action="store_true", help="check FILE and say what would be read")
    build.add_argument("--force", action="store_true", help="replace a finished build")
    build.set_defaults(run_verb=_build)

    text = "which tasks are questions of evaluation sets: as they are, nearly, or with other numbers"
    check = verbs.add_parser("check", help=text, allow_abbrev=False)
    check.add_argument("tasks", metavar="TASKS", help=_SOURCE)
    text = "an evaluation set, in the same forms; may be repeated"
    check.add_argument("--against", action="append", required=True, metavar="FILE", help=text)
    text = "JSON Lines: id and level (duplicate, near, twin, clean) of each task, with the evidence"
    check.add_argument("--out", type=Path, required=True, metavar="FILE", help=text)
    text = "coverage of the question by rare 8-grams, or the plain rule of any 8 words in a row (paper)"
    check.add_argument("--mode", choices=("coverage", "paper"), default="coverage", help=text)
    check.add_argument("--field", metavar="NAME", help="of a row, with the problem; default: question or problem")
    check.add_argument("--force", action="store_true", help="replace the file --out if there is one")
    check.set_defaults(run_verb=_check)

    show = verbs.add_parser("show", help="the funnel of a build", allow_abbrev=False)
    show.add_argument("folder", type=Path, metavar="FOLDER", help="the output of `rocstar data build`")
    show.add_argument("--svg", type=Path, metavar="FILE", help="draw it into this file")
    show.add_argument("--force", action="store_true", help="replace the file --svg if there is one")
    show.set_defaults(run_verb=_show)
    for verb in (build, check, show):
        verb.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the verb and print its result; return 0."""
    print(options.run_verb(options))
    return 0


def _build(options: argparse.Namespace) -> str:
    from rocstar.sandbox.extras import missing_extra_message
    from rocstar.train.data.build import build, describe_sources
    from rocstar.train.data.build_config import load_build
    from rocstar.train.recipe.errors import ConfigError

    config = load_build(options.file, commercial=options.commercial)
    if config.kind == "conversations" and (
        missing := missing_extra_message("checking calls of conversations", "train")
    ):
        raise ConfigError(missing)
    if options.dry_run:
        return describe_sources(config, commercial=options.commercial, as_json=options.json)
    if options.out is None:
        raise ConfigError("--out is missing; give a folder that is new or empty")
    funnel = build(config, options.out, commercial=options.commercial, force=options.force)
    return json.dumps(funnel.as_json()) if options.json else funnel.as_text()


def _check(options: argparse.Namespace) -> str:
    from rocstar.train.data.check import check_tasks

    counts = check_tasks(
        options.tasks, options.against, options.out, mode=options.mode, field=options.field, force=options.force
    )
    return json.dumps(counts.as_json()) if options.json else counts.as_text()


def _show(options: argparse.Namespace) -> str:
    from rocstar.train.data.funnel import read_funnel
    from rocstar.train.record.run_directory import check_file

    funnel = read_funnel(options.folder)
    if options.svg is not None:
        check_file(options.svg, force=options.force, option="--svg")
        options.svg.write_text(funnel.as_svg(), encoding="utf-8")
    return json.dumps(funnel.as_json()) if options.json else funnel.as_text()
