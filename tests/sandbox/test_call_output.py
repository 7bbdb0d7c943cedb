"""Files of a call, which are never a part of its program; displays, output while it runs, and awaiting."""

import asyncio
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import Any

import pytest
import pytest_asyncio

from rocstar.sandbox import files
from rocstar.sandbox.files import MAX_FILES_BYTES
from rocstar.sandbox.pool import wire
from rocstar.sandbox.pool.call_output import CallOutput
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import Display, ExecRequest, ExecResult, Limits, SandboxError, Status

from .. import needs
from ..patience import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

PICTURE = b"\x89PNG not much of a picture"
SHOWN = f"""
class Picture:
    def __repr__(self): return "a picture"
    def _repr_png_(self): return {PICTURE!r}
class Page:
    def _repr_html_(self): return "<b>a page</b>"
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[SandboxPool]:
    async with SandboxPool(max_live=2) as pool:
        if not pool._restarter.facts["files"]:
            pytest.skip("this kernel has no Landlock, or cannot ask about new files")
        yield pool


async def test_files_that_are_asked_for_come_back_however_the_program_ended(pool: SandboxPool) -> None:
    code = "import os\nos.mkdir('a')\nopen('a/b', 'wb').write(bytes(256))\nopen('é', 'w').close()\nos._exit(3)"
    request = ExecRequest(code=code, fetch=("a/b", "é", "nowhere", "a"))
    result = await pool.run(request)
    assert result.exit_code == 3
    assert result.files == {"a/b": bytes(256), "é": b""}
    async for _, outcome in pool.run_batch([request]):
        assert outcome.files == result.files  # type: ignore[union-attr]


async def test_a_file_that_is_asked_for_twice_comes_once(pool: SandboxPool) -> None:
    """It came twice as long, and a display that was asked for as a file twice as well."""
    code = "open('a', 'w').write('x')\n" + SHOWN + "display(Page())"
    request = ExecRequest(code=code, fetch=("a", ".display/0", "a"), displays=True)
    session = await pool.open_session()
    for result in (await pool.run(request), await session.run(code, fetch=request.fetch, displays=True)):
        assert result.files == {"a": b"x"} and [one.data for one in result.displays] == [b"<b>a page</b>"]
    await session.close()


async def test_sixty_four_mib_go_up_and_down(pool: SandboxPool) -> None:
    """As a file of their own, never as a part of the program, and put together beside the loop."""
    content = b"0123456789abcdef" * (MAX_FILES_BYTES // 16)
    limits = Limits(file_bytes=MAX_FILES_BYTES, wall_s=20.0)
    request = ExecRequest(
        code="import os\nos.rename('up', 'down')", files={"up": content}, fetch=("down", "up"), limits=limits
    )
    result = await pool.run(request)
    assert result.status is Status.OK, result
    assert list(result.files) == ["down"] and result.files["down"] == content


async def test_files_that_two_threads_read_at_a_time_are_their_owners() -> None:
    """Long answers are put together beside the supervisor's loop, short ones in it."""

    async def fetched(pool: SandboxPool, owner: str, number: int, size: int) -> None:
        names = tuple(map(str, range(number)))
        code = f"for name in {names}: open(name, 'wb').write(b'{owner}' * {size})"
        limits = Limits(wall_s=60.0, file_bytes=size)
        result = await pool.run(ExecRequest(code=code, fetch=names, owner=owner, limits=limits))
        assert result.files == dict.fromkeys(names, owner.encode() * size)

    async def short(pool: SandboxPool, long: asyncio.Future[Any]) -> None:
        while not long.done():
            await fetched(pool, "B", 1, 900_000)

    async with SandboxPool(max_live=4) as pool:
        if not pool._restarter.facts["files"]:
            needs.LANDLOCK.skip()
        long = asyncio.gather(*(fetched(pool, "A", 15, 4 << 20) for _ in range(2)))
        await asyncio.gather(long, short(pool, long))


@pytest.mark.parametrize("raised", [ZeroDivisionError, StopIteration])
async def test_what_a_callers_own_function_raises_is_its_alone(pool: SandboxPool, raised: type[Exception]) -> None:
    """It ended the supervisor's connection, and with it everybody's sessions."""

    def tell(stream: str, text: str) -> None:
        raise raised

    session, restarts = await pool.open_session(), pool.restarts
    await session.run("x = 5")
    with pytest.raises(RuntimeError if raised is StopIteration else raised):
        await pool.run("while True: print(1)", on_output=tell)
    assert (await session.run("x")).value == "5" and pool.restarts == restarts
    await session.close()


async def test_what_is_more_than_an_answer_holds_is_left_out(pool: SandboxPool) -> None:
    limits = Limits(file_bytes=MAX_FILES_BYTES + 1, wall_s=20.0)
    code = f"open('large', 'wb').truncate({MAX_FILES_BYTES + 1})\nopen('small', 'w').write('x')"
    result = await pool.run(ExecRequest(code=code, fetch=("large", "small"), limits=limits))
    assert result.files == {"small": b"x"}


LONG = """
import sys
n = 1_200_000
sys.stdout.write("\\u00e9" * n)
sys.stderr.write("\\u6f22" * n + "!")
class Long:
    def __repr__(self): return "x" * n
Long()
"""


async def test_long_texts_come_whole_however_they_were_asked_for(pool: SandboxPool) -> None:
    request = ExecRequest(code=LONG, limits=Limits(output_bytes=1 << 23, wall_s=20.0), flavour="stdlib")
    session = await pool.open_session(flavour="stdlib", limits=request.limits)
    found = [outcome async for _, outcome in pool.run_batch([request])]
    for result in (await pool.run(request), await session.run(LONG), *found):
        assert isinstance(result, ExecResult) and result.status is Status.OK
        assert (result.stdout, result.stderr) == ("\u00e9" * 1_200_000, "\u6f22" * 1_200_000 + "!")
        assert result.value and set(result.value) <= set("x.")
    await session.close()


@pytest.mark.parametrize("name", ["../x", "", "a//b", "a\nb"])
async def test_a_name_of_no_file_of_a_program_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="fetch has the name"):
        ExecRequest(code="", fetch=(name,))


async def test_what_is_displayed_comes_in_its_order(pool: SandboxPool) -> None:
    code = SHOWN + "display(Page(), 5, Picture())\nPicture()"
    result = await pool.run(ExecRequest(code=code, displays=True))
    page, picture = Display("text/html", b"<b>a page</b>"), Display("image/png", PICTURE)
    assert result.displays == (page, picture, picture), result
    assert (result.stdout, result.value) == ("5\n", "a picture")
    plain = await pool.run(ExecRequest(code=code))
    assert plain.displays == () and "a picture" in plain.stdout


async def test_a_cell_displays_only_what_is_its_own(pool: SandboxPool) -> None:
    session = await pool.open_session()
    first = await session.run(SHOWN + "import os\nos.mkdir('x')\nos.chdir('x')\ndisplay(Picture())", displays=True)
    second = await session.run("display(Picture())")
    third = await session.run("1", displays=True)
    fourth = await session.run("display(Page(), Page())", displays=True)
    assert [len(one.displays) for one in (first, second, third, fourth)] == [1, 0, 0, 2], first


FORGED = {
    "a picture of no type that is known": ("f('0', b'text/x-evil\\nx'); f('1', b'image/png\\nx')", 1),
    "no type at all": ("f('0', b'x' * 100)", 0),
    "more than are taken": ("[f(str(n), b'image/png\\nx') for n in range(40)]", 32),
    "a folder in the place of one": ("f('0', b'image/png\\nx'); os.mkdir('.display/1'); f('2', b'image/png\\nx')", 1),
    "a name of another": ("f('00', b'image/png\\nx'); f('0 ', b'image/png\\nx')", 0),
}


@pytest.mark.parametrize("how", FORGED)
async def test_a_program_that_forges_displays_gets_pictures_at_most(pool: SandboxPool, how: str) -> None:
    forge, number = FORGED[how]
    code = f"import os\nos.mkdir('.display')\ndef f(n, c): open('.display/' + n, 'wb').write(c)\n{forge}"
    result = await pool.run(ExecRequest(code=code, displays=True))
    assert result.status is Status.OK and len(result.displays) == number, result


async def test_output_is_told_while_a_cell_runs(pool: SandboxPool) -> None:
    session = await pool.open_session(limits=Limits(wall_s=30.0))
    told: list[tuple[str, str]] = []
    first = asyncio.Event()

    def tell(stream: str, text: str) -> None:
        told.append((stream, text))
        if text.endswith("\n"):  # a line and its end may come apart
            first.set()

    code = "import sys, time\nprint('é')\nwhile True: time.sleep(0.01)"
    running = asyncio.create_task(session.run(code, on_output=tell))
    await asyncio.wait_for(first.wait(), PATIENCE_S)
    assert not running.done() and {stream for stream, _ in told} == {"stdout"}
    assert "".join(text for _, text in told) == "é\n"
    running.cancel()
    await asyncio.wait([running])


async def test_as_much_is_told_as_the_result_may_show(pool: SandboxPool) -> None:
    told: dict[str, str] = {"stdout": "", "stderr": ""}

    def tell(stream: str, text: str) -> None:
        told[stream] += text

    code = "import sys\nprint('x' * 5000)\nprint('y', file=sys.stderr)"
    request = ExecRequest(code=code, limits=Limits(output_bytes=4096))
    result = await pool.run(request, on_output=tell)
    assert result.status is Status.OK and told == {"stdout": "x" * 4096, "stderr": "y\n"}


async def test_half_a_character_waits_for_the_other_half() -> None:
    told: list[str] = []
    output = CallOutput(lambda stream, text: told.append(text))
    for piece in (b"a\xc3", b"\xa9", b"\xff"):
        output.add_text("stdout", piece)
    assert told == ["a", "é", "\ufffd"]


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("import asyncio\nawait asyncio.sleep(0, 7)", "7"),
        ("async def f(): return 3\nx = await f()\nx + 1", "4"),
        ("async def g():\n    yield 1\n    yield 2\n[n async for n in g()]", "[1, 2]"),
        ("async def f(): return 5\nawait f();", None),
        ("'await'", "'await'"),
    ],
)
async def test_a_program_may_await_at_its_top(pool: SandboxPool, code: str, value: str | None) -> None:
    result = await pool.run(code)
    assert (result.status, result.value) == (Status.OK, value), result.stderr


async def test_an_exception_of_what_is_awaited_has_its_line(pool: SandboxPool) -> None:
    result = await pool.run("async def f():\n    1 / 0\nawait f()")
    assert result.status is Status.ERROR
    assert 'File "<cell>", line 2, in f' in result.stderr and "cell.py" not in result.stderr


async def test_what_a_figure_is_warned_of_is_told_once_and_names_no_line_of_ours(pool: SandboxPool) -> None:
    """Labels of which the font has no letters are the usual case."""
    if find_spec("matplotlib") is None:
        needs.package("matplotlib").skip()
    code = "import matplotlib.pyplot as plt\nplt.title('\u4e16\u4e16')\nplt.show()"
    limits = Limits(wall_s=PATIENCE_S, cpu_s=int(PATIENCE_S))
    result = await pool.run(ExecRequest(code=code, displays=True, limits=limits))
    told = [line for line in result.stderr.splitlines() if "font cache" not in line]
    assert told == ["UserWarning: Glyph 19990 (\\N{CJK UNIFIED IDEOGRAPH-4E16}) missing from font(s) DejaVu Sans."]
    assert [one.mime for one in result.displays] == ["image/png"]


# --- files that a program is given ---

LARGE_FILE = bytes(32 << 20)


async def test_a_program_finds_its_files_and_only_them(pool: SandboxPool) -> None:
    content = bytes(range(256)) * 3
    code = "import os\nopen('a/b/c.bin', 'rb').read(), open('é').read(), sorted(os.listdir()), os.listdir('a')"
    request = ExecRequest(code=code, files={"a/b/c.bin": content, "é": b"x", "empty": b""})
    result = await pool.run(request)
    assert result.value == repr((content, "x", ["a", "empty", "é"], ["b"])), result.stderr
    assert (await pool.run(ExecRequest(code="import os; os.listdir()"))).value == "[]"


async def test_they_come_beyond_the_programs_own_limits(pool: SandboxPool) -> None:
    """The largest that is taken, for a program that may itself write little and use little memory."""
    limits = Limits(file_bytes=10, files=1, memory_bytes=8 << 20)
    large = {"a/large": b"x" * MAX_FILES_BYTES}
    code = "import os\nopen('own', 'w').close()\nos.path.getsize('a/large')"
    result = await pool.run(ExecRequest(code=code, limits=limits, files=large))
    assert result.value == str(MAX_FILES_BYTES), result
    result = await pool.run(ExecRequest(code=f"{code}\nopen('second', 'w')", limits=limits, files=large))
    assert "Disk quota exceeded" in result.stderr


async def test_a_traceback_shows_the_program_alone(pool: SandboxPool) -> None:
    result = await pool.run(ExecRequest(code="x = 1\n1 / 0", files={"a": b"secret"}))
    assert 'File "<cell>", line 2' in result.stderr
    assert result.stderr == (await pool.run(ExecRequest(code="x = 1\n1 / 0"))).stderr


async def test_what_cannot_be_written_is_one_line_and_no_program_runs(pool: SandboxPool) -> None:
    """A directory of the first cell is in the way of the second one's file."""
    session = await pool.open_session()
    result = await session.run("print(open('a/b').read())", files={"a/b": b"1"})
    assert result.stdout == "1\n"
    result = await session.run("print('ran')", files={"a": b"2"})
    assert (result.status, result.stdout) == (Status.ERROR, "")
    assert result.stderr == "the files of this call cannot be written: Is a directory\n"
    result = await session.run("open('a/b').read()", files={"a/b": b"again"})
    assert result.value == "'again'", "a file that is there is replaced"
    await session.close()


async def test_a_call_without_room_for_its_files_says_so(pool: SandboxPool) -> None:
    limits = Limits(memory_bytes=pool._restarter.options.memory_bytes)
    with pytest.raises(SandboxError, match="of this pool"):
        await pool.run(ExecRequest(code="1", limits=limits, files={"a": b"x"}))


async def test_without_a_scratch_directory_files_are_refused() -> None:
    async with SandboxPool(without=("scratch",), max_live=1) as pool:
        with pytest.raises(SandboxError, match="scratch directories") as caught:
            await pool.run(ExecRequest(code="1", files={"a": b"x"}))
    assert (caught.value.kind, caught.value.retryable) == ("no_scratch", False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"../a": b""}, "below the working directory"),
        ({"/a": b""}, "below the working directory"),
        ({"a//b": b""}, "below the working directory"),
        ({"a/./b": b""}, "below the working directory"),
        ({"": b""}, "below the working directory"),
        ({"a\nb": b""}, "printable"),
        ({"\ud800": b""}, "printable"),
        ({"a" * 201: b""}, "at most 200 bytes"),
        ({"é" * 101: b""}, "at most 200 bytes"),
        ({"a": b"", "a/b": b""}, "'a' both as a file and as a directory"),
        ({"a/b": b"", "a/b/c/d": b""}, "'a/b' both"),
        ({str(i): b"" for i in range(65)}, "65 entries, more than 64"),
        ({"a": LARGE_FILE, "b": LARGE_FILE, "c": b"x"}, "67108865 bytes, more than 67108864"),
    ],
)
async def test_a_wrong_file_is_named(given: dict[str, bytes], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExecRequest(code="", files=given)


@pytest.mark.parametrize("code", ["", "1", "\udcff", "\ud800x", "\xff", "é"])
async def test_no_program_passes_for_a_pack(code: str) -> None:
    assert wire.encode_run(1, ExecRequest(code=code), 0)[1][:1] != files.MARK


async def test_a_pack_gives_back_what_went_in(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"a/b": b"\x00\xff", "c": b""}
    for displays in (False, True):
        packed = b"".join(files.pack(given, b"code \xff", displays=displays))
        assert files.unpack_here(packed) == (b"code \xff", displays)
    assert {name: (tmp_path / name).read_bytes() for name in given} == given
