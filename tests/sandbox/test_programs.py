"""What ordinary programs do: their output, value, errors, exit codes, input and randomness."""

import random

import pytest

from rocstar.sandbox.types import Status

from .conftest import Run

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", "2"),
        ("x = 3", None),
        ("x = 3\nx", "3"),
        ("None", None),
        ("'a'", "'a'"),
        ("1\n2\n3", "3"),
        ("x = [1]\nx.append(x[0])\nx", "[1, 1]"),
        ("1;", None),
        ("1; 2", "2"),
        ("1 # ;", "1"),
        ("';'", "';'"),
        ("(1,\n 2);", None),
        ("'é'; 'ü' ;", None),
        ("x = '\x0c'\n1;", None),
        ("def f():\n    return 1\nf()", "1"),
        ("for i in range(3):\n    i", None),
        ("", None),
        ("# nothing", None),
        ("print('a')", None),
        ("from __future__ import annotations\n1", "1"),
        ("[i for i in range(3)]", "[0, 1, 2]"),
    ],
)
async def test_value_is_the_trailing_expression(run: Run, code: str, value: str | None) -> None:
    result = await run(code)
    assert (result.status, result.value, result.stderr) == (Status.OK, value, "")


async def test_the_trailing_expression_is_evaluated_once(run: Run) -> None:
    result = await run("calls = []\ndef f():\n    calls.append(1)\n    print(len(calls))\n    return calls\nf()")
    assert (result.stdout, result.value) == ("1\n", "[1]")


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        ("x = 1\nx / 0", ['Traceback (most recent call last):\n  File "<cell>", line 2, in <module>\n    x / 0\n']),
        ("import json\ndef f():\n    json.loads('{')\nf()", ['"<cell>", line 3, in f\n', "JSONDecodeError: "]),
        ("try:\n    {}['k']\nexcept KeyError as e:\n    raise ValueError from e", ["KeyError: 'k'", "direct cause"]),
        ("raise ExceptionGroup('g', [ValueError('one'), TypeError('two')])", ["ValueError: one", "TypeError: two"]),
        ("x = 1\ny = = 2", ['File "<cell>", line 2', "SyntaxError: invalid syntax\n"]),
        ("class A:\n    def __repr__(self):\n        raise ValueError('no')\nA()", ["ValueError: no"]),
        ("def f():\n    return f()\nf()", ["RecursionError"]),
        ("x = 1\0", ["null bytes"]),
        ("x = 1\nif x:\n    return 5", ["line 3\n    return 5\n    ^^^^^^^^\nSyntaxError: 'return' outside"]),
        ("print(x)", ["\n    print(x)\n          ^\nNameError: "]),  # without a newline
        ("y = '\u2028\x0c'\r\nprint(x)\n", ["line 2", "\n    print(x)\n          ^\nNameError: "]),
        ("x = '\ud800'", ["surrogates not allowed"]),
    ],
)
async def test_an_error_shows_the_frames_of_the_program_alone(run: Run, code: str, parts: list[str]) -> None:
    result = await run(code)
    assert (result.status, result.exit_code, result.value) == (Status.ERROR, 1, None)
    assert all(part in result.stderr for part in parts), result.stderr
    assert "json/" not in result.stderr and "rocstar" not in result.stderr and len(result.stderr) < 2000


@pytest.mark.parametrize(
    ("code", "exit_code", "stderr"),
    [
        ("raise SystemExit", 0, ""),
        ("import sys; sys.exit(0)", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit(259)", 3, ""),
        ("import sys; sys.exit(-1)", 255, ""),
        ("import sys; sys.exit('message')", 1, "message\n"),
        ("exit(4)", 4, ""),
        ("import os; os._exit(5)", 5, ""),
        ("import os; print('kept'); os._exit(0)", 0, ""),
    ],
)
async def test_exit_codes(run: Run, code: str, exit_code: int, stderr: str) -> None:
    result = await run(code)
    assert (result.exit_code, result.signal, result.stderr) == (exit_code, None, stderr)
    assert result.status is (Status.OK if exit_code == 0 else Status.ERROR)


async def test_standard_input(run: Run) -> None:
    assert (await run("input(), input()", stdin="one\ntwo\n")).value == "('one', 'two')"
    assert "EOFError" in (await run("input()")).stderr
    assert (await run("import sys; len(sys.stdin.read())", stdin="é" * 200_000)).value == "200000"
    assert (await run("input()", stdin="\ud800")).value == "'?'"
    written = await run("import os; os.write(0, b'x')", stdin="in")
    assert "PermissionError" in written.stderr


@pytest.mark.parametrize(
    ("code", "stdout"),
    [
        ("import sys; sys.stdout.buffer.write(b'a\\xff\\xe2\\x82z')", "a\ufffd\ufffdz"),
        ("print('é€😀')", "é€😀\n"),
        ("import os; os.write(1, b'raw')", "raw"),
        ("print('a\\0b')", "a\0b\n"),
        ("import io, sys; sys.stdout = io.TextIOWrapper(sys.stdout.buffer); print('x')", "x\n"),
        ("import sys; print('x'); sys.stdout.close()", "x\n"),
        ("import sys; sys.stdout = None; print('x')", ""),
    ],
)
async def test_output_is_always_valid_text(run: Run, code: str, stdout: str) -> None:
    result = await run(code)
    assert (result.status, result.stdout) == (Status.OK, stdout)


async def test_a_value_that_is_no_text_is_repaired(run: Run) -> None:
    result = await run("class A:\n    def __repr__(self):\n        return '\\ud800x'\nA()")
    assert result.value == "?x"


async def test_calls_share_nothing(run: Run) -> None:
    await run("import builtins, math; builtins.leak = 1; math.pi = 3; x = 1")
    result = await run("import builtins, math; hasattr(builtins, 'leak'), math.pi > 3.1, 'x' in globals()")
    assert result.value == "(False, True, False)"


async def test_randomness_is_fresh_or_seeded(run: Run) -> None:
    code = "import random; random.random(), random.gauss(0, 1)"
    fresh = [await run(code) for _ in range(2)]
    seeded = [await run(code, seed=seed) for seed in (7, 7, 8)]
    assert fresh[0].value != fresh[1].value
    assert seeded[0].value == seeded[1].value != seeded[2].value
    assert (await run("import random; random.random()", seed=7)).value == repr(random.Random(7).random())


async def test_usage_is_measured(run: Run) -> None:
    result = await run("x = bytearray(64 << 20)\nsum(range(10**6))")
    assert result.peak_memory_bytes > 60 << 20
    assert result.wall_s > 0 and result.cpu_s > 0
    assert {"nnp", "rlimits", "seccomp"} <= set(result.isolation.split("+"))
