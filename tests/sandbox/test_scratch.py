"""Scratch directories: each program has one of its own, of a bounded size, that nobody else ever sees."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, Status

from .. import needs
from .conftest import Run

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["all layers", "tier A"])
async def scratch_pool(request: pytest.FixtureRequest) -> AsyncIterator[SandboxPool]:
    without = ("namespaces", "cgroup", "uid") if request.param == "tier A" else ()
    async with SandboxPool(max_live=2, without=without) as pool:
        if not pool._restarter.facts["files"]:
            needs.LANDLOCK.skip()  # or a kernel that cannot ask about new files
        yield pool


@pytest.fixture(scope="module")
def run(scratch_pool: SandboxPool) -> Run:
    async def run(code: str, **limits: int) -> ExecResult:
        return await scratch_pool.run(ExecRequest(code=code, limits=Limits(**limits)))

    return run


async def test_it_is_empty_and_where_temporary_files_go(run: Run) -> None:
    code = (
        "import os, tempfile\n"
        "before = os.listdir()\n"
        "with tempfile.NamedTemporaryFile() as file, tempfile.TemporaryDirectory() as folder:\n"
        "    folders = {os.path.dirname(os.path.realpath(name)) for name in (file.name, folder)}\n"
        "inside = folders == {os.getcwd()}\n"
        "with tempfile.TemporaryFile('w+') as file:\n"
        "    file.write('x')\n"
        "before, inside, os.listdir()"
    )
    for _ in range(3):
        assert (await run(code)).value == "([], True, [])"


async def test_nothing_is_left_for_the_next_program(run: Run, scratch_pool: SandboxPool) -> None:
    leave = (
        "import os\nos.umask(0o777)\nos.mkdir('locked')\n"
        "open('file', 'w').close()\nopen('-rf *\\n', 'w').close()\nos.getcwd()"
    )
    for _ in range(6):
        assert (await run(leave)).status is Status.OK
        assert (await run("import os; os.listdir()")).value == "[]"


async def test_only_so_many_files_can_be_made(run: Run) -> None:
    code = (
        "import errno, os\nmade = 0\n"
        "try:\n    while True:\n        {make}\n        made += 1\n"
        "except OSError as error:\n    reason = errno.errorcode[error.errno]\n"
        "made, reason"
    )
    for make in ("open(str(made), 'w').close()", "os.mkdir(str(made))", "os.close(os.open(str(made), os.O_CREAT))"):
        assert (await run(code.format(make=make), files=7)).value == "(7, 'EDQUOT')"
    none = await run("open('x', 'w')", files=0)
    assert none.status is Status.ERROR and "OSError" in none.stderr


async def test_a_directory_that_hides_its_files_is_no_way_round_the_number(run: Run) -> None:
    code = (
        "import os\nos.umask(0)\nos.mkdir('blind', 0o333)\nmade = 0\n"
        "try:\n    while made < 500:\n        open(f'blind/{made}', 'w').close()\n        made += 1\n"
        "except OSError:\n    pass\nmade"
    )
    made = (await run(code, files=10)).value
    assert made is not None and int(made) <= 10


async def test_a_file_has_a_largest_size(run: Run) -> None:
    code = (
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "file = open('x', 'wb')\n"
        "try:\n    file.write(b'x' * 100_001)\n    file.flush()\n"
        "except OSError as error:\n    print(error)\n"
        "import os; os.stat('x').st_size"
    )
    result = await run(code, file_bytes=100_000)
    assert "File too large" in result.stdout and result.value == "100000"


async def test_links_and_devices_cannot_be_made(run: Run) -> None:
    for code in (
        "os.symlink('/etc/passwd', 'x')",
        "os.link('a', 'x')",
        "os.mkfifo('x')",
        "os.mknod('x', 0o20600, os.makedev(1, 3))",
        "socket.socketpair()[0].bind('x')",
    ):
        result = await run(f"import os, socket\nopen('a', 'w').close()\n{code}")
        assert result.status is Status.ERROR and "Error" in result.stderr, code
    assert (await run("import os; open('a', 'w').close(); os.execv('a', ['a'])")).status is Status.ERROR


async def test_modes_times_and_owners_stay_and_what_copies_them_goes_on(run: Run) -> None:
    code = (
        "import os, shutil\n"
        "os.mkdir('folder')\n"
        "open('folder/a', 'w').write('text')\n"
        "before = os.stat('folder/a')\n"
        "os.chmod('folder/a', 0o4777), os.utime('folder/a', (1, 1)), os.chown('folder/a', 1, 1)\n"
        "after = os.stat('folder/a')\n"
        "shutil.copy('folder/a', 'b'), shutil.copy2('folder/a', 'c'), shutil.copytree('folder', 'd')\n"
        "shutil.make_archive('e', 'tar', 'd'), shutil.unpack_archive('e.tar', 'f')\n"
        "names = 'st_mode', 'st_mtime', 'st_uid'\n"
        "same = [getattr(after, name) == getattr(before, name) for name in names]\n"
        "same, [open(name).read() for name in ('b', 'c', 'd/a', 'f/a')]"
    )
    assert (await run(code)).value == "([True, True, True], ['text', 'text', 'text', 'text'])"


async def test_a_session_keeps_its_files_and_its_branches_see_them(scratch_pool: SandboxPool) -> None:
    session = await scratch_pool.open_session()
    await session.run("open('kept', 'w').write('x')")
    assert (await session.run("import os; os.listdir()")).value == "['kept']"
    branch = await session.branch()
    await session.close()
    assert (await branch.run("open('kept').read(), os.listdir()")).value == "('x', ['kept'])"
    await branch.close()
    for _ in range(4):
        result = await scratch_pool.run(ExecRequest(code="import os; os.listdir()"))
        assert result.value == "[]"
