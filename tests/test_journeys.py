"""The journeys of docs/architecture.md: a text search leads from each file to the next."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
HOP = re.compile(r"^\d+\. `([^`]+)`: (.*)$", re.M)
MOST_FILES = {
    "From token ids to the loss": 12,
    "From a tool call to the child and back": 10,
    "From new weights to a server": 8,
}


def hops(title: str) -> list[tuple[str, list[str]]]:
    """The files of a journey, each with the names behind it."""
    part = PAGE.partition(f"**{title}.**")[2].partition("\n**")[0].partition("\n## ")[0]
    return [(file, re.findall(r"`([^`]+)`", names)) for file, names in HOP.findall(part)]


def mentions(file: str, name: str) -> bool:
    text = (ROOT / file).read_text(encoding="utf-8")
    return all(re.search(rf"\b{re.escape(part)}\b", text) for part in name.split("."))


@pytest.mark.parametrize("title", MOST_FILES)
def test_each_file_is_found_from_those_before_it(title: str) -> None:
    journey = hops(title)
    assert 5 <= len(journey) <= MOST_FILES[title]
    for file, names in journey:
        assert names and [name for name in names if not mentions(file, name)] == [], file
    for number, (file, (name, *_)) in enumerate(journey[1:], 1):
        before = journey[number - 1][1][0]
        assert any(mentions(earlier, name) for earlier, _ in journey[:number]) or mentions(file, before), name


def test_no_file_comes_twice() -> None:
    for title in MOST_FILES:
        files = [file for file, _ in hops(title)]
        assert all(one != other for one, other in pairwise(sorted(files)))
