"""`rocstar report`: the page of a run, or of an evaluation."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rocstar.train.cli.arguments import new_verb, nothing_more
from rocstar.train.recipe.errors import ConfigError


def add(verbs: Any) -> None:
    parser = new_verb(verbs, "report", "write report.html of a run directory, or of an evaluation's folder")
    parser.add_argument("run", type=Path, help="run directory, or folder of an evaluation")
    text = "of an evaluation: also the questions of sets whose licence asks that they are not shown"
    parser.add_argument("--reveal", action="store_true", help=text)
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    from rocstar.train.reading.view.report import write_report
    from rocstar.train.record.metrics import MetricsFileError
    from rocstar.train.record.report.sections import ReportError

    nothing_more(rest, "`rocstar report FOLDER` takes only --reveal")
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
