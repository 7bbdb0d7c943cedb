"""What runs as by the interpreter alone, where test_ordinary.py cannot see it: limits, endings, sessions."""

import pytest

from rocstar.sandbox import ExecRequest, Limits, SandboxPool, Status
from rocstar.sandbox.child import error_text, notebook

pytestmark = pytest.mark.asyncio(loop_scope="module")

POOL = """
import time
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(64) as pool:
    print(sum(pool.map(lambda k: (time.sleep(0.05), k)[1], range(128))))
"""


@pytest.mark.parametrize("mib", [256, 512, 1024, 2048])
async def test_sixty_four_threads_start_at_every_memory_limit(pool: SandboxPool, mib: int) -> None:
    limits = Limits(wall_s=30.0, memory_bytes=mib << 20)
    assert (await pool.run(ExecRequest(code=POOL, limits=limits))).stdout == "8128\n"


@pytest.mark.parametrize(
    "ending",
    [
        "while True: pass",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import ctypes; ctypes.string_at(0)",
        "import os; os.abort()",
    ],
)
async def test_a_part_of_a_line_is_kept_however_the_program_ends(pool: SandboxPool, ending: str) -> None:
    code = f"import sys\nprint('10%', end=' ')\nsys.stdout.buffer.write(b'20%')\n{ending}"
    result = await pool.run(ExecRequest(code=code, limits=Limits(wall_s=1.0)))
    assert result.stdout == "10% 20%"
    assert result.status in (Status.TIMEOUT, Status.SIGNALED)


async def test_many_small_writes_come_in_order(pool: SandboxPool) -> None:
    code = "for i in range(30000): print(i % 10, end='')\nimport sys\nsys.stdout.buffer.write(b'!')"
    result = await pool.run(ExecRequest(code=code, limits=Limits(wall_s=30.0)))
    assert result.stdout == "0123456789" * 3000 + "!"


async def test_a_large_value_is_cut_and_its_session_lives(pool: SandboxPool) -> None:
    session = await pool.open_session()
    await session.run("x = list(range(10**6)); kept = 1")
    large = await session.run("x")
    assert (large.status, (large.value or "")[:10]) == (Status.OK, "[0, 1, 2, ")
    assert "bytes cut" in (large.value or "") and (large.value or "").endswith("999999]")
    assert (await session.run("kept")).value == "1"
    alone = await pool.run("list(range(10**6))")
    assert (alone.status, (alone.value or "")[-8:]) == (Status.OK, " 999999]")


async def test_a_session_imports_what_lies_beside_it_and_is_no_script(pool: SandboxPool) -> None:
    session = await pool.open_session()
    code = "open('mine.py', 'w').write('A = 5')\nimport mine, os, sys\n"
    facts = "(mine.A, sys.path[0] == os.getcwd() == os.path.expanduser('~'), '__file__' in globals())"
    assert (await session.run(code + facts)).value == "(5, True, False)"


async def test_files_are_given_and_fetched_by_the_places_of_the_program(pool: SandboxPool) -> None:
    pairs = ("/mnt/data/d", "/tmp/in"), ("/tmp/t", "/mnt/data/in")
    code = f"for a, b in {pairs}: open(a, 'w').write(open(b).read())"
    files, names = (
        {"/tmp/in": b"1", "/mnt/data/in": b"2"},
        ("/mnt/data/d", "/tmp/t", "d", "/tmp/none", "/etc/passwd"),
    )
    found = {"/mnt/data/d": b"1", "/tmp/t": b"2", "d": b"1"}
    assert (await pool.run(ExecRequest(code=code, files=files, fetch=names))).files == found
    session = await pool.open_session()
    assert (await session.run(code, files=files, fetch=names)).files == found


async def test_a_notebooks_commands_are_taken(pool: SandboxPool) -> None:
    session = await pool.open_session()
    result = await session.run("%matplotlib inline\n%time x = 5\nif x:\n    !pip install y\nx")
    assert (result.value, result.stdout) == ("5", "")
    assert result.stderr == (
        "!pip install y: packages cannot be installed: there is no network; use the packages that are there\n"
    )
    assert (await session.run("x = '''\n%d\n''' % 3\nx")).value == repr("\n3\n")
    wrong = await session.run("%matplotlib inline\nx = = 1")
    assert (wrong.status, wrong.stderr.splitlines()[-1]) == (Status.ERROR, "SyntaxError: invalid syntax")


async def test_what_is_no_command_stays_an_error() -> None:
    for source in ("x = = 1", "print('a'", "y = 5 %% 3", "%5 + 1"):
        with pytest.raises(SyntaxError) as caught:
            compile(source, "x", "exec")
        assert notebook.without_commands(source, caught.value) is None


async def test_an_error_says_which_limit_it_met(pool: SandboxPool) -> None:
    many = "for k in range(70): open(str(k), 'w').close()"
    assert "(limits.files)" in (await pool.run(many)).stderr
    large = "open('x', 'wb').write(bytes(5 << 20))"
    assert "sandbox: a file may have 4194304 bytes (limits.file_bytes)" in (await pool.run(large)).stderr


async def test_a_chain_of_any_length_is_told() -> None:
    error = ValueError("first")
    for number in range(5000):
        following = ValueError(number)
        following.__cause__ = error
        error = following
    assert error_text.error_text(error).endswith("ValueError: 4999\n")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


async def test_an_error_whose_text_raises_has_no_last_line() -> None:
    assert error_text.last_line(Mute()) is None
