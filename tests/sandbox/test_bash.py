"""Bash programs through the pool: what they may do, how they end, and that nothing of them is left.

What a hostile one tries is in sandbox/attacks/programs (bash_*.sh); what the filter says to single calls in
csrc/tests/test_seccomp.cpp.
"""

import asyncio
import hashlib
import json
import os
import platform
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rocstar.sandbox import _native
from rocstar.sandbox.child import bash
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, SandboxError, Status

from ..needs import BASH
from .errors import sandbox_error
from .watching import is_alive, started_by, until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), BASH.unless(bash.offered())]

Run = Callable[..., Awaitable[ExecResult]]
FILTERS = Path(__file__).parent / "attacks" / "filters_x86_64.json"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[SandboxPool]:
    async with SandboxPool(("bash",)) as pool:
        yield pool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_user() -> AsyncIterator[SandboxPool]:
    """Where the kernel does not count a program's processes: as every ordinary user has it."""
    async with SandboxPool(("bash",), without=("uid", "namespaces", "cgroup")) as pool:
        yield pool


async def run(pool: SandboxPool, code: str, *, stdin: str = "", **limits: Any) -> ExecResult:
    return await pool.run(ExecRequest(code=code, stdin=stdin, flavour="bash", limits=Limits(**limits)))


# --- ordinary programs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "ending", "stdout", "stderr"),
    [
        ("read -r a; echo $((a * 7)); echo wrong >&2; exit 9", (Status.ERROR, 9, None), "42\n", "wrong\n"),
        ("echo one\nno_such", (Status.ERROR, 127, None), "one\n", "line 2: no_such: command not found\n"),
        ('ls -A; [ "$HOME$TMPDIR" = "$PWD$PWD" ] && mktemp >/dev/null', (Status.OK, 0, None), "", ""),
        ("kill -TERM $$", (Status.SIGNALED, None, signal.SIGTERM), "", ""),
        (
            "cat /dev/stdin; echo a >/dev/stdout; echo b >/dev/stderr; cat /dev/fd/0",
            (Status.OK, 0, None),
            "6\na\n6\n",
            "b\n",
        ),
        ("echo \0x", (Status.ERROR, 2, None), "", "bash: the program has a NUL character\n"),
    ],
)
async def test_a_program_has_its_input_its_output_and_its_ending(
    pool: SandboxPool, code: str, ending: tuple[Status, int | None, int | None], stdout: str, stderr: str
) -> None:
    result = await run(pool, code, stdin="6\n")
    assert (result.status, result.exit_code, result.signal) == ending and result.value is None
    assert result.stdout == stdout and result.stderr.endswith(stderr) and bool(result.stderr) == bool(stderr)


async def test_files_go_in_and_come_out(pool: SandboxPool) -> None:
    request = ExecRequest(
        code="mkdir out && sort -t, -k2 -n in/table.csv >out/sorted.csv",
        flavour="bash",
        files={"in/table.csv": b"a,3\nb,1\nc,2\n"},
        fetch=("out/sorted.csv",),
    )
    assert (await pool.run(request)).files == {"out/sorted.csv": b"b,1\nc,2\na,3\n"}


async def test_the_places_that_programs_expect_are_its_own(pool: SandboxPool) -> None:
    code = """
for at in /mnt/data /tmp /var/tmp /dev/shm; do echo $at >$at/x && cat $at/x && ls -l $at | wc -l; done
[ -f /tmp/x ] && [ -d /tmp ] && [ -s x ] && mkdir -p /tmp/a/b && cp /tmp/x /tmp/a/b && mv /tmp/a/b/x /tmp/a/y
ls /tmp/a && rm -r /tmp/a && sed -i s/shm/seen/ /tmp/x && cat /tmp/x
stat -c %s /tmp/x
tar cf /tmp/t -C /tmp x && tar tf /tmp/t && touch $(mktemp /tmp/cXXX) && cd /tmp && ls | wc -l && echo /tmp/?
"""
    result = await run(pool, code)
    listed = "".join(f"{at}\n2\n" for at in ("/mnt/data", "/tmp", "/var/tmp", "/dev/shm"))
    assert result.stdout == f"{listed}b\ny\n/dev/seen\n10\nx\n3\n/tmp/t /tmp/x\n", result.stderr
    assert result.status is Status.OK


async def test_a_file_is_given_and_fetched_by_its_place(pool: SandboxPool) -> None:
    request = ExecRequest(
        code="cat /mnt/data/in /tmp/in >/mnt/data/d; cp d /tmp/t",
        flavour="bash",
        files={"/mnt/data/in": b"1", "/tmp/in": b"2"},
        fetch=("/mnt/data/d", "/tmp/t", "/var/tmp/t", "d", "/mnt/data/none", "/etc/passwd", "/tmp/../d", "/tmp/./d"),
    )
    found = dict.fromkeys(("/mnt/data/d", "/tmp/t", "/var/tmp/t", "d", "/tmp/../d"), b"12")
    assert (await pool.run(request)).files == found


async def test_the_environment_is_small(pool: SandboxPool) -> None:
    result = await run(pool, "env | cut -d= -f1 | sort | tr '\\n' ' '")
    assert result.stdout == "HOME LANG LD_PRELOAD PATH PWD ROCSTAR_HOME SHLVL TMPDIR _ "


async def test_a_program_is_as_long_as_an_argument_may_be(pool: SandboxPool) -> None:
    most = _native.MOST_SHELL_BYTES
    result = await run(pool, "echo long #".ljust(most, "x"))
    assert (result.status, result.stdout) == (Status.OK, "long\n"), result.stderr
    with pytest.raises(SandboxError, match=f"has {most + 1} bytes, more than {most}") as raised:
        await run(pool, "#".ljust(most + 1, "x"))
    assert not raised.value.retryable
    longer = ExecRequest(code=". ./more.sh", files={"more.sh": b"#" * most + b"\necho more"}, flavour="bash")
    assert (await pool.run(longer)).stdout == "more\n"


# --- limits -----------------------------------------------------------------------------------------------


async def test_its_processes_are_counted(pool: SandboxPool, shared_user: SandboxPool) -> None:
    """By the kernel, or by the supervisor where the kernel counts a user's. bash tries a fork again."""
    for one in (pool, shared_user):
        result = await run(one, "for n in {1..90}; do sleep 20 & echo $n; done 2>/dev/null", wall_s=1.5)
        assert result.status is Status.TIMEOUT
        assert 30 <= len(result.stdout.split()) <= 64


async def test_files_count_and_not_how_often_they_were_opened(pool: SandboxPool) -> None:
    code = "for n in {1..400}; do echo $n >>f || break; echo $n >g && rm g; done; wc -l <f"
    assert (await run(pool, code, files=2, wall_s=20.0)).stdout == "400\n"
    many = await run(pool, "for n in {1..40}; do echo $n >f$n || break; done; ls | wc -l", files=2)
    assert many.stdout == "32\n"  # 16 for each file
    assert "Disk quota exceeded" in many.stderr


async def test_a_cancelled_program_leaves_nothing(pool: SandboxPool) -> None:
    call = asyncio.create_task(run(pool, "sleep 60 & sleep 60 | cat", wall_s=60))
    await until(lambda: len(started_by(pool)) >= 4)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: not started_by(pool))


# --- accidents --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("without", [(), ("uid", "namespaces", "cgroup")])
async def test_a_supervisors_death_ends_all_of_it(without: tuple[str, ...]) -> None:
    """Orphans that ignore signals and have tried to cut the lifeline, too."""
    deaf = "trap '' HUP INT TERM; for fd in {3..255}; do eval \"exec $fd>&-\"; done 2>/dev/null; sleep 60"
    async with SandboxPool(("bash",), max_live=2, without=without) as pool:
        call = asyncio.create_task(run(pool, f"({deaf} & ({deaf}) &) & ({deaf}) & sleep 60", wall_s=60))
        await until(lambda: len(started_by(pool)) >= 4)  # three are deaf; bash may become the sleep it ends with
        orphans = started_by(pool)
        os.kill(pool.supervisor_pid, signal.SIGKILL)
        await until(lambda: not any(is_alive(pid) for pid in orphans))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_zygotes_death_loses_no_call(pool: SandboxPool) -> None:
    calls = [asyncio.create_task(run(pool, "sleep 0.1; echo done")) for _ in range(4)]
    await until(lambda: started_by(pool))
    os.kill(pool.zygotes["bash"][-1], signal.SIGKILL)
    assert [result.stdout for result in await asyncio.gather(*calls)] == ["done\n"] * 4


# --- the flavour ------------------------------------------------------------------------------------------


async def test_it_has_no_sessions(pool: SandboxPool) -> None:
    with pytest.raises(SandboxError, match="no sessions: a bash program's processes end with it"):
        await pool.open_session(flavour="bash")


@pytest.mark.parametrize("layer", ["seccomp", "landlock", "notify", "scratch"])
async def test_it_is_refused_where_a_layer_is_missing(layer: str) -> None:
    with sandbox_error("no_isolation", "flavour 'bash' needs", retryable=False):
        async with SandboxPool(("bash",), without=(layer,), allow_no_isolation=True):
            pass


async def test_python_beside_it_starts_nothing() -> None:
    """Both flavours of one pool: what bash may do, Python may not."""
    async with SandboxPool(("stdlib", "bash")) as pool:
        attempt = "import subprocess\ntry: subprocess.run(['/bin/true'])\nexcept OSError as e: print(e.errno)"
        assert (await pool.run(ExecRequest(code=attempt, flavour="stdlib"))).stdout == "1\n"
        assert (await run(pool, "/bin/true && echo ran")).stdout == "ran\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86-64")
async def test_the_filters_of_the_other_kinds_are_bit_for_bit_what_they_were_without_it() -> None:
    """Recorded from the commit before the flavour. Who changes a filter on purpose records it anew:

    python -c "from tests.sandbox.test_bash import record; record()"
    """
    assert filters() == json.loads(FILTERS.read_text())


def filters() -> dict[str, dict[str, object]]:
    return {
        kind: {"instructions": len(program) // 8, "sha256": hashlib.sha256(program).hexdigest()}
        for kind, program in _native.filters().items()
        if kind != "shell"
    }


def record() -> None:
    FILTERS.write_text(json.dumps(filters(), indent=1) + "\n")
