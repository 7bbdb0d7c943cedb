"""Near misses of answers are refused, and other forms of them accepted: a sample of the benchmark."""

import random
import sys
from pathlib import Path

from ..train.tasks.test_compare import accepted

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from judge_on_answers import CHANGES, near_misses, rewritings

ANSWERS = [
    "42",
    "-7",
    "10080",
    "\\frac{22}{7}",
    "-\\frac{3}{4}",
    "12\\pi",
    "\\frac{5\\pi}{6}",
    "3\\sqrt{13}",
    "2+\\sqrt{3}",
    "x^2+2x+1",
    "(2,\\infty)",
    "(-\\infty,3]",
    "\\left(3,\\frac{1}{2}\\right)",
    "(1,5)",
    "y=2x+3",
    "2516_8",
    "5\\text{ cm}",
    "1,2,5",
    "3a^2-b",
    "C",
    "3x+1",
]


def test_near_misses_are_refused() -> None:
    rng = random.Random(1)
    misses = [(kind, answer, text) for answer in ANSWERS * 8 for kind, text in near_misses(answer, rng)]
    assert {kind for kind, *_ in misses} == set(CHANGES)
    assert [miss for miss in set(misses) if accepted(miss[2], miss[1])] == []


def test_other_forms_are_accepted() -> None:
    forms = [(kind, answer, text) for answer in ANSWERS for kind, text in rewritings(answer)]
    assert len({kind for kind, *_ in forms}) >= 18
    assert [form for form in forms if not accepted(form[2], form[1])] == []
