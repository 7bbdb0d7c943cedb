"""The recipe's fields are a promise to everyone who wrote a recipe: changing one is a decision, made here.

tests/config_surface.txt lists them. Whoever adds, renames or removes a field edits that file in the same
commit and says why in its message.
"""

from pathlib import Path

from rocstar.train.recipe.fields import sections, surface

LISTED = Path(__file__).with_name("config_surface.txt")
MOST_EVERYDAY_FIELDS = 40
"""What fits on a page. A field beyond it is `Expert[...]`, or takes the place of one that becomes so."""


def test_the_fields_are_the_listed_ones() -> None:
    assert surface() == LISTED.read_text(encoding="utf-8").split("\n")[:-1]


def test_what_everyone_sets_fits_on_a_page() -> None:
    everyday = [field.name for section in sections() for field in section.fields if not field.expert]
    assert len(everyday) <= MOST_EVERYDAY_FIELDS, everyday
