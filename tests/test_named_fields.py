"""A recipe field that README, CHANGELOG or docs/ name in backticks, `section.field`, is one."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OF_OTHERS = "coming-from.md"
"""The page with the fields of other programs; test_describe.py compares it with its table."""
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != OF_OTHERS),
]

FORMER = {"engine.turn_timeout_s", "run.output_dir", "tool.kind"}
"""Named where the page says that they are gone."""

FILES = {"engine.json", "reward.py"}
"""Of a run's directory or a user's, whose names look like fields."""


def fields() -> set[str]:
    """All that a recipe may set; the fields of a data set under each of their sections."""
    lines = (ROOT / "tests" / "config_surface.txt").read_text(encoding="utf-8").splitlines()
    of_data = [line.removeprefix("DATA") for line in lines if line.startswith("DATA.")]
    found = {line for line in lines if not line.startswith("DATA.")}
    for line in [*found]:
        section, is_data, _ = line.partition(" = DATA")
        if is_data:
            found |= {section, *(section + field for field in of_data)}
    return found


def false_fields(text: str) -> list[str]:
    """Names in backticks that begin with a section of the recipe and lead nowhere in it."""
    known = fields()
    sections = "|".join(sorted({field.partition(".")[0] for field in known}))
    false = []
    for name in re.findall(rf"`(?:--)?((?:{sections})(?:\.[\w*]+)+)[^`]*`", text):
        plain = re.sub(r"\.(?:\d+|N)(?=\.|$)", "", name)  # stages.0.steps, stages.N.steps
        there = any(f == plain or f.startswith(plain.removesuffix("*").rstrip(".") + ".") for f in known)
        if not there and name not in FORMER | FILES:
            false.append(name)
    return false


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_fields_that_a_page_names_exist(page: Path) -> None:
    assert not false_fields(page.read_text(encoding="utf-8"))
