"""A flavour's tables agree with each other, and its warm-up runs alone, silently."""

import importlib.util
import itertools
import subprocess
import sys

import pytest

from rocstar.sandbox.child.flavours import FLAVOURS, Flavour

from .. import needs

CHECK = """
import sys
from rocstar.sandbox.child.flavours import FLAVOURS
from rocstar.sandbox.child.zygote import preload
flavour = FLAVOURS[sys.argv[1]]
preload(flavour)
missing = flavour.packages - sys.modules.keys()
too_much = {"matplotlib"} & sys.modules.keys() - flavour.packages
sys.exit(sorted(missing | too_much) or None)
"""


def missing(flavour: Flavour) -> list[str]:
    packages = {name.partition(".")[0] for name in flavour.modules}
    return sorted(name for name in packages if importlib.util.find_spec(name) is None)


@pytest.mark.parametrize("flavour", FLAVOURS.values(), ids=lambda flavour: flavour.name)
def test_the_warm_up_prints_nothing_and_the_packages_are_there_and_no_dear_ones(flavour: Flavour) -> None:
    if absent := missing(flavour):
        needs.package(" and ".join(absent)).skip()
    ended = subprocess.run(
        [sys.executable, "-c", CHECK, flavour.name], capture_output=True, text=True, timeout=300, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


def test_flavours_that_are_chosen_stand_from_the_smallest_to_the_largest() -> None:
    chosen = [flavour.packages for flavour in FLAVOURS.values() if flavour.chosen]
    assert all(small < large for small, large in itertools.pairwise(chosen))
    assert not chosen[0]


def test_a_flavour_that_needs_packages_says_how_to_install_them() -> None:
    assert all(flavour.install for flavour in FLAVOURS.values() if flavour.packages)
