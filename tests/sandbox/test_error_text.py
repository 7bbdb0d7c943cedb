"""What the short way says of an error is what the traceback module says, or nothing."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.sandbox.child import error_text
from rocstar.sandbox.child.cell import CELL, _Lines, keep_lines

pytestmark = pytest.mark.skipif(not error_text.IS_KNOWN, reason="the short way is for another Python")

USUAL = [
    "print(result)",
    "  \nx = 5\nprint(1, undefined, x)  # in the middle\n",
    "undefined",
    "undefined\n",
    "import math\nmath.isqrt('4')",
    "import math\n\tmath.gcd(1)",
    "int('x')",
    "raise ValueError",
    "raise ValueError('two\\nlines')",
    "dict().pop('a')",
    "def f(x):\n    return x.missing\n\nf(3)",
    "def f():\n  def g():\n    return len(5)\n  return g()\nf()",
    "import textwrap\ntextwrap.dedent(5)  # frames of a library",
    "try:\n  1 / 0\nexcept ZeroDivisionError:\n  raise KeyError('k') from None",
    "assert not print",
    "class Key: pass\nraise KeyError(1, 'b')",
    "x = print\\\n(1, undefined)",
    "print(1",
    "print(512 * 523",
    "if True:\nprint(1)",
    "x = 1\n  y = 2",
    "\t\tfor",
    "x = 'abc",
    "for for in x",
    "é = 1 +",
    "f(a=1, 2)",
    "lambda: (yield) = 1",
    "compile('1 1', 'other', 'exec')",
    "eval('(1')",
    "raise StopIteration(3)",
]
UNUSUAL = [
    "1 / 0",
    "[][1]",
    "{}['k']",
    "x = 'é', undefined",
    "def f():\n    f()\nf()",
    "def f(n):\n    return f(n - 1) if n else undefined\nf(5)",
    "len(\n  1,\n  2)",
    "import json\njson.loads('{')",
    "return 5",
    "try:\n  undefined\nexcept NameError:\n  other",
    "raise ValueError from KeyError('cause')",
    "class Mine(Exception): pass\nraise Mine('own')",
    "class KeyError(Exception): pass\nraise KeyError('not that one')",
    "error = ValueError('x')\nerror.add_note('a note')\nraise error",
    "raise ExceptionGroup('many', [ValueError(1), TypeError(2)])",
    "class Bad:\n  def __repr__(self): raise KeyboardInterrupt\nraise ValueError(Bad(), 1)",
    "raise SyntaxError('by hand')",
    "raise SyntaxError('by hand', ('<cell>', 1, None, 'text'))",
    "raise SyntaxError('by hand', ('', 1, 2, 'text'))",
    "raise SyntaxError(5, ('<cell>', 1, 2, 'text'))",
    "raise SyntaxError('by hand', ('<cell>', 'one', 2, 'text'))",
]


def error_of(source: str) -> BaseException | None:
    """What the program raises."""
    keep_lines(_Lines([source]), CELL)
    try:
        exec(compile(source, CELL, "exec", dont_inherit=True), {"__name__": "__main__"})
    except BaseException as error:
        return error
    return None


@pytest.mark.parametrize("source", USUAL)
def test_a_usual_error_reads_as_ever(source: str) -> None:
    error = error_of(source)
    assert error is not None
    assert error_text.plain_text(error) == error_text.full_text(error)


@pytest.mark.parametrize("source", UNUSUAL)
def test_an_unusual_one_is_left_to_the_module(source: str) -> None:
    error = error_of(source)
    assert error is not None
    assert error_text.plain_text(error) is None
    assert error_text.error_text(error) == error_text.full_text(error)


def test_a_limit_of_frames_is_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "tracebacklimit", 1, raising=False)
    error = error_of("def f():\n  undefined\nf()")
    assert error is not None
    assert error_text.plain_text(error) is None


WORDS = (*"x1()[] \n\t'+:é\f#", "**", "if ", "for ", "len")


@given(st.lists(st.sampled_from(WORDS), max_size=12).map("".join))
def test_whatever_is_written_it_says_the_same_or_nothing(source: str) -> None:
    error = error_of(source)
    if error is not None and (text := error_text.plain_text(error)) is not None:
        assert text == error_text.full_text(error)
