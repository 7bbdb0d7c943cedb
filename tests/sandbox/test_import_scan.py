"""The scan names the cheapest flavour that has what a program imports, and never raises."""

import base64
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.sandbox.child import import_scan
from rocstar.sandbox.child.flavours import FLAVOURS
from rocstar.sandbox.child.import_scan import MAX_BEFORE, MAX_SCANNED, RELATIVES, find_imports, select_flavour

ALL = tuple(FLAVOURS)
WRAPPED = base64.b64encode(b"import sympy\nprint(1)").decode()


@pytest.mark.parametrize(
    ("code", "flavour"),
    [
        ("", "stdlib"),
        ("print(1)", "stdlib"),
        ("import math, os\nfrom collections import Counter", "stdlib"),
        ("import numpy as np, sympy", "numeric"),
        ("import os, numpy", "numeric"),
        ("from sympy import *", "numeric"),
        ("from sympy.abc import x", "numeric"),
        ("import numpy.linalg", "numeric"),
        ("import mpmath", "numeric"),
        ("def f():\n    import numpy\n", "numeric"),
        ("if True: import numpy", "numeric"),
        ("x = 1; from sympy import symbols", "numeric"),
        ("import os, \\\n    numpy", "numeric"),
        ("from\tsympy import S", "numeric"),
        ("import pandas as pd", "numeric"),
        ("n = __import__('numpy')", "numeric"),
        ('import importlib\nimportlib.import_module("sympy")', "numeric"),
        ("import scipy", "scientific"),
        ("from scipy.optimize import brentq", "scientific"),
        ("import sympy\nfrom scipy import stats", "scientific"),
        ("from sklearn.svm import SVC", "scientific"),
        ("from math_verify import parse", "stdlib"),
        ("numpy = 3\nprint(numpy)", "stdlib"),
        ("# no sympy here\nprint('numpy')", "stdlib"),
        ("import numpy_financial", "stdlib"),
        ("import mine.numpy", "stdlib"),
        (f'import base64\nexec(base64.b64decode("{WRAPPED}"))', "numeric"),
        ('import base64\nexec(base64.b64decode("sympy"))', "stdlib"),
    ],
)
def test_the_cheapest_flavour_that_has_what_is_imported(code: str, flavour: str) -> None:
    assert select_flavour(code, ALL) == flavour


@pytest.mark.parametrize(
    ("code", "offered", "flavour"),
    [
        ("import scipy, numpy", ("stdlib", "numeric"), "numeric"),
        ("import scipy", ("stdlib", "numeric"), "stdlib"),
        ("import numpy", ("stdlib",), "stdlib"),
        ("print(1)", ("scientific", "numeric"), "numeric"),
        ("import sympy", ("verifier", "stdlib"), "stdlib"),
        ("import sympy", ("cpp", "stdlib"), "stdlib"),
        ("print(1)", ("verifier",), "verifier"),
        ("print(1)", (), "stdlib"),
    ],
)
def test_what_is_not_offered_is_not_chosen(code: str, offered: tuple[str, ...], flavour: str) -> None:
    assert select_flavour(code, offered) == flavour


@given(st.text(), st.sets(st.sampled_from([*ALL, "cpp"]), min_size=1))
def test_any_text_gets_a_flavour_that_is_offered(code: str, offered: set[str]) -> None:
    assert select_flavour(code, offered) in offered


names = st.sampled_from(sorted({*RELATIVES, *(p for f in FLAVOURS.values() if f.chosen for p in f.packages)}))
filler = st.text(alphabet="ab1 \n=()'\"#\\;.", max_size=60)


@given(st.lists(names, min_size=1, max_size=4), filler, filler)
def test_an_import_on_a_line_of_its_own_is_found_whatever_surrounds_it(
    packages: list[str], before: str, after: str
) -> None:
    found = find_imports(f"{before}\nimport {', '.join(packages)}\n{after}")
    assert found >= {RELATIVES.get(name, name) for name in packages}


@given(filler, st.sets(st.sampled_from(ALL), min_size=1))
def test_more_imports_never_choose_a_cheaper_flavour(code: str, offered: set[str]) -> None:
    order = [name for name in ALL if name in offered]
    small, large = (select_flavour(f"{code}\nimport {rest}", order) for rest in ("os", "os, numpy, scipy"))
    assert order.index(small) <= order.index(large)


def test_only_the_head_of_a_long_program_is_scanned() -> None:
    assert select_flavour(" " * MAX_SCANNED + "\nimport numpy", ALL) == "stdlib"
    assert select_flavour("import numpy\n" + " " * MAX_SCANNED, ALL) == "numeric"


def test_a_scan_is_linear_whatever_the_program() -> None:
    """Lines that go on for ever, and names on each: once every mention walked back over all of them."""
    steps = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        steps += event == "line" and frame.f_code.co_filename == import_scan.__file__
        return count

    mentions = "".join(f"{name} \\\n" * 40 for name in import_scan._PACKAGES)
    hostile = "import os\n" + "x\\\n" * (1 << 14) + mentions
    sys.settrace(count)
    try:
        find_imports(hostile)
    finally:
        sys.settrace(None)
    assert steps < 10_000


def test_an_import_is_found_over_continued_lines_and_not_too_far_from_its_name() -> None:
    assert find_imports("import os, \\\n  numpy") == {"numpy"}
    assert not find_imports(f"import os{' ' * MAX_BEFORE}, numpy")
