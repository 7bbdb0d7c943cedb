"""A program agrees, or differs for a reason with a name; only what nothing explains is the sandbox's."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from llm_programs import Outcome, difference
from sandbox_bench.programs import Program


def program(expected: str) -> Program:
    return Program(code="", expected=expected, flavour="stdlib", name="p")


@pytest.mark.parametrize(
    ("expected", "stdout"), [("1 2", "1 2\n"), ("[1,\n 2]", "[1, 2]\n"), ("", ""), ("x**2/3", "x**2/3")]
)
def test_white_space_does_not_matter(expected: str, stdout: str) -> None:
    assert difference(program(expected), Outcome(status="ok", stdout=stdout), None) is None


@pytest.mark.parametrize(
    ("expected", "stdout", "reason"),
    [
        ("0.5", "np.float64(0.5)", "numpy 2 shows the type of a scalar"),
        ("0.6923076923076926", "np.float64(0.6923076923076927)", "the last digits of a float"),
        ("[0.1, 0.30000000000000004]", "[0.1, 0.3]", "the last digits of a float"),
        ("{1, 25, 50}", "{1, 50, 25}", "the order of a set"),
    ],
)
def test_harmless_reasons_are_named(expected: str, stdout: str, reason: str) -> None:
    found = difference(program(expected), Outcome(status="ok", stdout=stdout), None)
    assert found is not None
    assert (found.reason, found.ours) == (reason, False)


@pytest.mark.parametrize(
    ("expected", "outcome"),
    [
        ("4", Outcome(status="ok", stdout="5")),
        ("0.5", Outcome(status="ok", stdout="0.6")),
        ("4", Outcome(status="error", stdout="4")),
        ("4", Outcome(status="timeout")),
        ("(1, 2)", Outcome(status="ok", stdout="(2, 1)")),
    ],
)
def test_anything_else_is_the_sandboxes_unless_plain_python_differs_too(
    expected: str, outcome: Outcome
) -> None:
    right, wrong = Outcome(status="ok", stdout=expected), Outcome(status="error")
    for plain, ours in ((None, True), (right, True), (wrong, False)):
        found = difference(program(expected), outcome, plain)
        assert found is not None
        assert found.ours is ours
