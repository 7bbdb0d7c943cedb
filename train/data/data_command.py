"""`rocstar data check`: its arguments and what it prints."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verbs below `data`."""
    verbs = parser.add_subparsers(required=True, metavar="VERB", dest="data_verb")
    text = "which tasks are questions of evaluation sets: as they are, nearly, or with other numbers"
    check = verbs.add_parser("check", help=text, allow_abbrev=False)
    text = "JSONL or Parquet, a folder of them, or hub:OWNER/NAME"
    check.add_argument("tasks", metavar="TASKS", help=text)
    text = "an evaluation set, in the same forms; may be repeated"
    check.add_argument("--against", action="append", required=True, metavar="FILE", help=text)
    text = "JSON Lines: id and level (duplicate, near, twin, clean) of each task, with the evidence"
    check.add_argument("--out", type=Path, required=True, metavar="FILE", help=text)
    text = "coverage of the question by rare 8-grams, or the plain rule of any 8 words in a row (paper)"
    check.add_argument("--mode", choices=("coverage", "paper"), default="coverage", help=text)
    check.add_argument(
        "--field", metavar="NAME", help="of a row, with the problem; default: question or problem"
    )
    check.add_argument("--force", action="store_true", help="replace the file --out if there is one")
    check.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the verb; 0."""
    from rocstar.train.data.check import check_tasks

    found = check_tasks(
        options.tasks,
        options.against,
        options.out,
        mode=options.mode,
        field=options.field,
        force=options.force,
    )
    print(json.dumps(found.as_json()) if options.json else found.as_text())
    return 0
