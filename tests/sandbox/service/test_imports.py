"""Which flavour a program gets."""

import base64

import pytest

from rocstar.sandbox.service.imports import FlavourChoice

CHOICE = FlavourChoice(("stdlib", "numeric", "verifier"))


@pytest.mark.parametrize(
    ("code", "flavour"),
    [
        ("", "stdlib"),
        ("import math, os", "stdlib"),
        ("import numpy", "numeric"),
        ("import numpy as np, math", "numeric"),
        ("import math, numpy as np", "numeric"),
        ("from sympy import *", "numeric"),
        ("from sympy.abc import x", "numeric"),
        ("import sympy.abc", "numeric"),
        ("    import numpy", "numeric"),
        ("if 1: import numpy", "numeric"),
        ("x = 1; from numpy import array", "numeric"),
        ("import mpmath", "numeric"),
        ("import pandas as pd", "numeric"),
        ("import math_verify", "stdlib"),
        ("print('numpy')", "stdlib"),
        ("# import numpy", "stdlib"),
        ("numpy = 3", "stdlib"),
        ("from .numpy import x", "stdlib"),
        ("important numpy", "stdlib"),
        ("import my_numpy", "stdlib"),
    ],
)
def test_imports_decide(code: str, flavour: str) -> None:
    assert CHOICE.choose(code) == flavour
    assert CHOICE.choose("x = 1\n" * 100 + code + "\nprint(x)\n") == flavour


def test_programs_inside_the_wrapper_of_rstar2_are_seen() -> None:
    inner = base64.b64encode(b"import sympy\nsympy.sqrt(8)").decode()
    template = 'import base64\ncode = base64.b64decode("{}".encode()).decode()\nexec(code)\n'
    assert CHOICE.choose(template.format(inner)) == "numeric"
    assert CHOICE.choose(template.format(base64.b64encode(b"print(1)").decode())) == "stdlib"
    assert CHOICE.choose(template.format("A")) == "stdlib"


def test_without_a_fitting_flavour_the_first_is_taken() -> None:
    assert FlavourChoice(("stdlib",)).choose("import numpy") == "stdlib"
    assert FlavourChoice(("numeric", "verifier")).choose("") == "numeric"
    assert FlavourChoice(("stdlib", "verifier")).choose("import sympy") == "stdlib"


def test_at_least_one_flavour_is_needed() -> None:
    with pytest.raises(ValueError, match="flavour"):
        FlavourChoice(())
