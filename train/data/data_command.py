"""`rocstar data build|check|show`: work and output."""

import argparse
import json


def run(options: argparse.Namespace) -> int:
    """Run the verb and print its result; return 0."""
    print({"build": _build, "check": _check, "show": _show}[options.data_verb](options))
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
