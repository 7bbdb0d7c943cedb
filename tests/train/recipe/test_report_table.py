"""The page of a recipe and its report is made of both, and each difference has its reason."""

import sys
from pathlib import Path

import pytest

from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.load import RECIPES

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import recipe_table


@pytest.mark.parametrize("report", sorted((RECIPES / "report").glob("*.toml")), ids=lambda path: path.stem)
def test_the_table_beside_the_recipe_is_up_to_date(report: Path) -> None:
    """Write it with: python benchmarks/recipe_table.py"""
    page = RECIPES / f"{report.stem}.md"
    assert page.read_text(encoding="utf-8") == recipe_table.page(report.stem)


def test_a_difference_needs_a_reason_and_no_difference_has_none() -> None:
    row = {"field": "rl.temperature", "report": 1.0, "where": "5.1"}
    assert recipe_table.cells(Recipe(), row) == ("`rl.temperature`", "1.0", "1.0", "")
    with pytest.raises(ValueError, match="has a reason"):
        recipe_table.cells(Recipe(), {**row, "why": "because"})
    with pytest.raises(ValueError, match="say why"):
        recipe_table.cells(Recipe(), {**row, "report": 0.6})
    assert recipe_table.cells(Recipe(), {**row, "report": 0.6, "why": "hotter"})[2:] == ("1.0", "hotter")
