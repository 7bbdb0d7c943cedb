"""`rocstar recipe`: what the fields of a recipe mean."""

from __future__ import annotations

import argparse
from typing import Any

from rocstar.train.cli.arguments import new_verb, nothing_more


def add(verbs: Any) -> None:
    parser = new_verb(verbs, "recipe", "what the fields of a recipe mean, with default, unit and bounds")
    parser.add_argument("field", nargs="?", help="section.field, or a section; default: what everyone sets")
    parser.add_argument("--all", action="store_true", help="the fields for experts too")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a JSON list of all fields, or of the given")
    form.add_argument("--markdown", action="store_true", help="print the page docs/reference/recipe.md")
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    from rocstar.train.recipe import describe

    nothing_more(rest, "`rocstar recipe` takes a field's name")
    if options.markdown:
        print(describe.markdown(), end="")
    elif options.json:
        print(describe.as_json(options.field))
    else:
        print(describe.in_full(options.field) if options.field else describe.short_table(experts=options.all))
    return 0
