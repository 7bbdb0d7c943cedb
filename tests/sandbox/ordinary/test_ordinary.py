"""Ordinary programs end in the sandbox as by the interpreter alone, but for what is documented."""

from pathlib import Path

import pytest

from .ordinary import compare, differences, programs

ROOT = Path(__file__).parents[3]
LEAST_ALIKE = 125
"""Of 140 programs."""


@pytest.mark.timeout(600)
def test_all_but_the_documented_end_alike() -> None:
    wanted = programs()
    found = compare(wanted)
    assert {name: found[name] for name in found.keys() - differences().keys()} == {}
    assert differences().keys() - found.keys() == set(), "they end alike now: take them from the table"
    assert len(wanted) - len(found) >= len(wanted) * LEAST_ALIKE / 140


def test_each_difference_is_one_of_the_programs() -> None:
    assert differences().keys() <= {one.name for one in programs()}


def test_each_reason_stands_in_the_reference() -> None:
    page = " ".join((ROOT / "docs/reference/sandbox.md").read_text().split())
    for reason in dict.fromkeys(differences().values()):
        assert " ".join(reason.split()) in page
