"""The recipe's fields are a promise to everyone who wrote a recipe: changing one is a decision, made here.

tests/config_surface.txt lists them. Whoever adds, renames or removes a field edits that file in the same
commit and says why in its message.
"""

from pathlib import Path

from rocstar.train.config import surface

LISTED = Path(__file__).with_name("config_surface.txt")
MAX_FIELDS = 90
"""A new field needs an old one to go, or this number to rise on purpose."""


def test_the_fields_are_the_listed_ones() -> None:
    assert surface() == LISTED.read_text(encoding="utf-8").split("\n")[:-1]


def test_the_recipe_stays_small() -> None:
    assert len(surface()) <= MAX_FIELDS
