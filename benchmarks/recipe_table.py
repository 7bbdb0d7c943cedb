"""The page beside a recipe: the fields with the values of its report, and a table of those that differ.

python benchmarks/recipe_table.py [--check]

recipes/NAME.toml + recipes/report/NAME.toml  ──>  recipes/NAME.md
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Mapping
from typing import Any

from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.load import RECIPES, load_recipe

REPORTS = RECIPES / "report"
HEAD = "| | report | where | recipe | why not the same |\n|---|---|---|---|---|"


def page(name: str) -> str:
    """Return the page of a recipe. ValueError for a row without content, or a difference without a reason."""
    recipe = load_recipe(RECIPES / f"{name}.toml")
    rows = tomllib.loads((REPORTS / f"{name}.toml").read_text(encoding="utf-8"))["row"]
    same: dict[str, list[str]] = {}
    table = []
    for row in rows:
        what, report, ours, why = cells(recipe, row)
        if ours == report and not why:
            same.setdefault(row["where"], []).append(f"{what} {ours}")
        else:
            table.append(f"| {what} | {report} | {row['where']} | {ours} | {why} |")
    lines = [f"# `{name}` and its report", "", "Made by `python benchmarks/recipe_table.py`.", "", "## The same", ""]
    lines += [f"- {where}: {', '.join(fields)}" for where, fields in same.items()]
    return "\n".join([*lines, "", "## Different", "", HEAD, *table, ""])


def cells(recipe: Recipe, row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return the name, both values and the reason of a row."""
    field, report, why = row.get("field"), row["report"], row.get("why", "")
    ours = value_of(recipe, field) if field else row["ours"]
    if field and (ours == report) == bool(why):
        what = "is the report's, and has a reason" if why else f"is not the report's {report!r}: say why"
        raise ValueError(f"{field} = {ours!r} {what}")
    return f"`{field}`" if field else row["what"], shown(report), shown(ours), why


def value_of(recipe: Recipe, field: str) -> Any:
    node: Any = recipe
    for part in field.split("."):
        node = node[int(part)] if part.isdecimal() else getattr(node, part)
    return node


def shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change no file; 1 if one is not up to date")
    options = parser.parse_args()
    stale = 0
    for report in sorted(REPORTS.glob("*.toml")):
        file, text = RECIPES / f"{report.stem}.md", page(report.stem)
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if options.check:
            print(f"{file} is not up to date: run python benchmarks/recipe_table.py")
        else:
            file.write_text(text, encoding="utf-8")
    return int(bool(stale) and options.check)


if __name__ == "__main__":
    sys.exit(main())
