"""The usual program is run from C++, and its error told without the traceback module; the plain way, which is
Python's alone, ends no program in another way.

    a program ──> flavour `short`: csrc/sandbox/programs.cpp, error_text.plain_text
              └─> flavour `plain`: cell.run_cell, cell.evaluate_tree, error_text.full_text     the same result

Both are zygotes of one pool: what a program leaves for the end of its process needs a process. Not here: what
a program does to rocstar's own modules, and the syntax error above a last line whose own compilation warns,
which the short way tells, too.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from rocstar.sandbox.child.flavours import FLAVOURS, Flavour
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest

from .ending_programs import LATE, PROGRAMS

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHORT, PLAIN = "short", "plain"
PLAIN_WAY = """
from rocstar.sandbox.child import cell, error_text

cell.RANDOM_WORDS = (b"",)  # which each program has, so none is usual
cell.evaluate = cell.evaluate_tree
error_text.IS_KNOWN = False
"""
"""A module that the zygote imports."""
INHERENT = (
    (re.compile(r"0x[0-9a-f]+|(?<=started )\d+"), "an address"),
    (re.compile(r"line repeated \d+ more times"), "line repeated"),
    (re.compile(r"(maximum recursion depth exceeded).*"), r"\1"),
)
"""What differs: where an object lies, and how many frames of ours are below those of the program."""

Outcome = tuple[object, ...]
Ways = Callable[[Sequence[str]], Awaitable[list[tuple[str, Outcome, Outcome]]]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ways(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ways]:
    """Runs programs both ways: those that end differently, with how they do."""
    site = tmp_path_factory.mktemp("site")
    (site / "plain_way.py").write_text(PLAIN_WAY)
    modules = FLAVOURS["stdlib"].modules
    declared = {
        name: Flavour(name=name, modules=imported, warm_up="", chosen=False, site=str(site))
        for name, imported in ((SHORT, modules), (PLAIN, (*modules, "plain_way")))
    }
    async with SandboxPool((SHORT, PLAIN), declared=declared) as pool:

        async def outcome(code: str, flavour: str) -> Outcome:
            ended = await pool.run(ExecRequest(code=code, flavour=flavour, seed=7, stdin="one\ntwo\n"))
            told = [ended.stdout, ended.stderr, ended.value or ""]
            for pattern, instead in INHERENT:
                told = [pattern.sub(instead, text) for text in told]
            return (ended.status, ended.exit_code, ended.signal, ended.value is None, *told)

        async def different(programs: Sequence[str]) -> list[tuple[str, Outcome, Outcome]]:
            both = [asyncio.gather(outcome(code, SHORT), outcome(code, PLAIN)) for code in programs]
            ended = zip(programs, await asyncio.gather(*both), strict=True)
            return [(code, short, plain) for code, (short, plain) in ended if short != plain]

        yield different


@pytest.mark.parametrize("about", PROGRAMS)
async def test_both_ways_end_a_program_in_the_same_way(ways: Ways, about: str) -> None:
    assert await ways(PROGRAMS[about]) == []


PIECES = (
    *(
        "x = 5\n",
        "x\n",
        "x",
        "print(x)\n",
        "print(x)",
        "undefined\n",
        "print(undefined)",
        "1 / 0\n",
        "x /= 2\n",
    ),
    *("raise ValueError(x)\n", "del x\n", "x is 5\n", "import sys\n", "sys.exit(3)\n", "raise SystemExit\n"),
    *(
        "import threading\n",
        LATE,
        "import atexit\n",
        "atexit.register(print, 'end')\n",
        "sys.tracebacklimit = 1\n",
    ),
    *(
        "sys.stdout.write('part')\n",
        "sys.stderr.write('part')\n",
        "sys.stdout = None\n",
        "sys.stdout.close()\n",
    ),
    *("sys.stderr = sys.stdout\n", "if x:\n    ", "try:\n    ", "except Exception:\n    ", "finally:\n    "),
    *(
        "def f():\n    ",
        "f()\n",
        "class C: ",
        "with x: ",
        "(",
        ")",
        "[",
        "'",
        "'''",
        '"',
        ";",
        "#",
        "\\\n",
        "\n",
    ),
    *("\n\n", "\r\n", "\f", "\t", " ", "é", ": ", "await ", "return "),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=7).map("".join)


@settings(max_examples=3)
@given(st.lists(TEXTS, min_size=40, max_size=40, unique=True))
async def test_so_do_they_with_what_is_put_together_at_random(ways: Ways, programs: list[str]) -> None:
    assert await ways(programs) == []
