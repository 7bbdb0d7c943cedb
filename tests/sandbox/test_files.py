"""Files of a call: in its directory before it starts, within bounds, and never a part of its program."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from rocstar.sandbox import files
from rocstar.sandbox.pool import wire
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, Limits, SandboxError, Status

LARGE = bytes(32 << 20)

beside_the_pool = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[SandboxPool]:
    async with SandboxPool(max_live=2) as pool:
        if not pool._facts["files"]:
            pytest.skip("this kernel has no Landlock, or cannot ask about new files")
        yield pool


@beside_the_pool
async def test_a_program_finds_its_files_and_only_them(pool: SandboxPool) -> None:
    content = bytes(range(256)) * 3
    code = (
        "import os\nopen('a/b/c.bin', 'rb').read(), open('é').read(), sorted(os.listdir()), os.listdir('a')"
    )
    request = ExecRequest(code=code, files={"a/b/c.bin": content, "é": b"x", "empty": b""})
    result = await pool.run(request)
    assert result.value == repr((content, "x", ["a", "empty", "é"], ["b"])), result.stderr
    assert (await pool.run(ExecRequest(code="import os; os.listdir()"))).value == "[]"


@beside_the_pool
async def test_they_come_beyond_the_programs_own_limits(pool: SandboxPool) -> None:
    """The largest that is taken, for a program that may itself write little and use little memory."""
    limits = Limits(file_bytes=10, files=1, memory_bytes=8 << 20)
    large = {"a/large": b"x" * files.MAX_FILES_BYTES}
    code = "import os\nopen('own', 'w').close()\nos.path.getsize('a/large')"
    result = await pool.run(ExecRequest(code=code, limits=limits, files=large))
    assert result.value == str(files.MAX_FILES_BYTES), result
    result = await pool.run(ExecRequest(code=f"{code}\nopen('second', 'w')", limits=limits, files=large))
    assert "Disk quota exceeded" in result.stderr


@beside_the_pool
async def test_a_traceback_shows_the_program_alone(pool: SandboxPool) -> None:
    result = await pool.run(ExecRequest(code="x = 1\n1 / 0", files={"a": b"secret"}))
    assert 'File "<cell>", line 2' in result.stderr
    assert result.stderr == (await pool.run(ExecRequest(code="x = 1\n1 / 0"))).stderr


@beside_the_pool
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


@beside_the_pool
async def test_a_call_without_room_for_its_files_says_so(pool: SandboxPool) -> None:
    limits = Limits(memory_bytes=pool._restarter.options.memory_bytes)
    with pytest.raises(SandboxError, match="of this pool"):
        await pool.run(ExecRequest(code="1", limits=limits, files={"a": b"x"}))


@beside_the_pool
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
        ({"a": LARGE, "b": LARGE, "c": b"x"}, "67108865 bytes, more than 67108864"),
    ],
)
def test_a_wrong_file_is_named(given: dict[str, bytes], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExecRequest(code="", files=given)


@pytest.mark.parametrize("code", ["", "1", "\udcff", "\ud800x", "\xff", "é"])
def test_no_program_passes_for_a_pack(code: str) -> None:
    assert wire.encode_run(1, ExecRequest(code=code), 0)[1][:1] != files.MARK


def test_a_pack_gives_back_what_went_in(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"a/b": b"\x00\xff", "c": b""}
    for displays in (False, True):
        packed = b"".join(files.pack(given, b"code \xff", displays=displays))
        assert files.unpack_here(packed) == (b"code \xff", displays)
    assert {name: (tmp_path / name).read_bytes() for name in given} == given
