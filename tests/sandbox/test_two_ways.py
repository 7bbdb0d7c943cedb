"""The usual program is run from C++; the plain way, which is Python's alone, ends no program in another way.

    a program ──> flavour `short`: csrc/sandbox/programs.cpp
              └─> flavour `plain`: cell.run_cell, cell.evaluate_tree     the same result

Both are zygotes of one pool: what a program leaves for the end of its process needs a process. Not here: what
a program does to rocstar's own modules, and the syntax error above a last line whose own compilation warns,
which the short way tells, too.
"""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from rocstar.sandbox.child import cell
from rocstar.sandbox.child.flavours import FLAVOURS, Flavour
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult

from ..patience import PATIENCE_S
from .ending_programs import LATE, PROGRAMS

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHORT, PLAIN = "short", "plain"
PLAIN_WAY = """
from rocstar.sandbox.child import cell

cell.UNUSUAL_WORDS = (b"",)  # which each program has, so none is usual
cell.evaluate = cell.evaluate_tree
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


Both = Callable[[str], Awaitable[list[ExecResult]]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Both]:
    """Runs a program the short way and the plain one."""
    site = tmp_path_factory.mktemp("site")
    (site / "plain_way.py").write_text(PLAIN_WAY)
    modules = FLAVOURS["stdlib"].modules
    declared = {
        name: Flavour(name=name, modules=imported, warm_up="", chosen=False, site=str(site))
        for name, imported in ((SHORT, modules), (PLAIN, (*modules, "plain_way")))
    }
    async with SandboxPool((SHORT, PLAIN), declared=declared) as pool:

        async def ended(code: str) -> list[ExecResult]:
            ways = (ExecRequest(code=code, flavour=way, seed=7, stdin="one\ntwo\n") for way in (SHORT, PLAIN))
            return await asyncio.gather(*map(pool.run, ways))

        yield ended


@pytest.fixture(scope="module")
def ways(both: Both) -> Ways:
    """Runs programs both ways: those that end differently, with how they do."""

    def outcome(ended: ExecResult) -> Outcome:
        told = [ended.stdout, ended.stderr, ended.value or ""]
        for pattern, instead in INHERENT:
            told = [pattern.sub(instead, text) for text in told]
        return (ended.status, ended.exit_code, ended.signal, ended.value is None, *told)

    async def different(programs: Sequence[str]) -> list[tuple[str, Outcome, Outcome]]:
        all_ended = zip(programs, await asyncio.gather(*map(both, programs)), strict=True)
        outcomes = ((code, *map(outcome, ended)) for code, ended in all_ended)
        return [(code, short, plain) for code, short, plain in outcomes if short != plain]

    return different


@pytest.mark.parametrize("about", PROGRAMS)
async def test_both_ways_end_a_program_in_the_same_way(ways: Ways, about: str) -> None:
    assert await ways(PROGRAMS[about]) == []


AWAITED = """
import traceback
class Value:
    def __repr__(self):
        traceback.print_stack()
        return ""
async def f():
    traceback.print_stack()
    return Value()
await f()
"""


@pytest.mark.parametrize("about", ["stacks", "uncaught errors"])
async def test_a_program_has_the_stack_and_the_error_that_it_has_under_the_interpreter_alone(
    both: Both, tmp_path: Path, about: str
) -> None:
    for code in PROGRAMS[about]:
        expected = interpreted(code, tmp_path / "program.py")
        for ended in await both(code):
            assert (ended.exit_code, ended.stdout, ended.stderr) == expected


def interpreted(code: str, file: Path) -> tuple[int, str, str]:
    file.write_text(code)
    command = [sys.executable, "-I", "-S", file]
    alone = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return alone.returncode, alone.stdout, alone.stderr.replace(str(file), "<cell>")


async def test_no_stack_names_a_file_of_ours(both: Both) -> None:
    """Also where the interpreter alone runs nothing: with an await, and of a trailing value."""
    for ended in await both(AWAITED):
        assert 'File "<cell>", line 8, in f' in ended.stderr and "line 5, in __repr__" in ended.stderr
        assert str(Path(cell.__file__).parent) not in ended.stderr


PIECES = (
    *("x = 5\n", "x\n", "x", "print(x)\n", "print(x)", "undefined\n", "print(undefined)", "1 / 0\n"),
    *("x /= 2\n", "raise ValueError(x)\n", "del x\n", "x is 5\n", "import sys\n", "sys.exit(3)\n"),
    *("raise SystemExit\n", "import threading\n", LATE, "import atexit\n"),
    *("atexit.register(print, 'end')\n", "sys.tracebacklimit = 1\n", "sys.stdout.write('part')\n"),
    *("sys.stderr.write('part')\n", "sys.stdout = None\n", "sys.stdout.close()\n"),
    *("sys.stderr = sys.stdout\n", "if x:\n    ", "try:\n    ", "except Exception:\n    ", "finally:\n    "),
    *("def f():\n    ", "f()\n", "class C: ", "with x: ", "(", ")", "[", "'", "'''", '"', ";", "#", "\\\n"),
    *("\n", "\n\n", "\r\n", "\f", "\t", " ", "é", ": ", "await ", "return "),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=7).map("".join)


@settings(max_examples=3)
@given(st.lists(TEXTS, min_size=40, max_size=40, unique=True))
async def test_so_do_they_with_what_is_put_together_at_random(ways: Ways, programs: list[str]) -> None:
    assert await ways(programs) == []
