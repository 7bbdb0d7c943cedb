"""The service's thread asks for short slices, and what it starts has the usual ones."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rocstar.sandbox import proctree
from rocstar.sandbox.child import bash
from rocstar.sandbox.pool import event_loop_priority as priority
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest

from .. import needs
from ..patience import PATIENCE_S
from .watching import children_of, programs_of, until

IMPORT = "from rocstar.sandbox.pool import event_loop_priority as priority"
SHOWS = "from rocstar.sandbox.pool.event_loop_priority import set_short_slice, slice_of_thread as s"
CAP_SYS_NICE = 23
CAPABILITIES = Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0]
RIGHT = needs.ROOT.unless(bool(int(CAPABILITIES, 16) >> CAP_SYS_NICE & 1))
PRIORITIES = "os.getpriority(os.PRIO_PROCESS, 0)"
GROUP_SAYS = "priority.GROUP.read_text().split()[-1] if priority.GROUP.exists() else None"
NEW = pytest.mark.skipif(not priority._takes_slices(), reason="needs Linux 6.12: a newer kernel")


def said(code: str, *, leads: bool = False) -> list[str]:
    """`leads`: its session, which is then a group of its own to the scheduler."""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True, start_new_session=leads)
    return done.stdout.split()


@NEW
def test_the_thread_gets_its_slice_and_keeps_its_priority() -> None:
    code = f"import os\n{SHOWS}\nos.nice(3)\nprint(set_short_slice(), s(), os.getpriority(os.PRIO_PROCESS, 0))"
    assert said(code) == ["True", str(priority.SLICE_NS), str(os.getpriority(os.PRIO_PROCESS, 0) + 3)]


@NEW
def test_what_it_starts_has_the_usual_slice() -> None:
    child = f"{SHOWS}\nprint(s())"
    code = f"import subprocess, sys\n{SHOWS}\nusual = s()\nset_short_slice()\nprint(usual, flush=True)\n"
    usual, inherited = said(f"{code}subprocess.run([sys.executable, '-c', {child!r}])")
    assert usual == inherited != str(priority.SLICE_NS)


@NEW
def test_behind_a_server_the_process_is_as_before() -> None:
    code = f"import os\n{IMPORT}\n"
    code += f"shown = lambda: ({PRIORITIES}, priority.slice_of_thread(), {GROUP_SAYS})\nbefore = shown()\n"
    code += "with priority.raised_priority():\n    inside = shown()\nprint(before == shown(), inside != before)"
    assert said(code, leads=True) == ["True", "True"]


def test_who_stands_back_takes_its_group_along_and_asks_again_when_it_may_not_yet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An ordinary user may set ten groups a second."""
    asked: list[int] = []
    monkeypatch.setattr(os, "setpriority", lambda kind, who, nice: asked.append(nice))
    monkeypatch.setattr(os, "getpriority", lambda kind, who: 3)
    monkeypatch.setattr(priority, "GROUP", tmp_path / "autogroup")
    assert priority.lower_priority(5) and (tmp_path / "autogroup").read_text() == "5"
    monkeypatch.setattr(Path, "write_text", lambda path, text: (_ for _ in ()).throw(BlockingIOError))
    assert not priority.lower_priority(2)
    assert asked == [5, 3], "nobody comes before what it was"
    monkeypatch.setattr(Path, "write_text", lambda path, text: (_ for _ in ()).throw(PermissionError))
    assert priority.lower_priority(5), "where there are no groups, nothing is asked for again"


@pytest.mark.parametrize("release", ["6.11.9", "5.15.0-91-generic", "odd", "6"])
def test_an_older_kernel_is_not_asked(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    monkeypatch.setattr(priority.platform, "release", lambda: release)
    assert not priority.set_short_slice()


@RIGHT
def test_with_the_right_the_thread_comes_first_and_so_does_its_sessions_group() -> None:
    child = f"import os\nprint({PRIORITIES})"
    code = f"import os, subprocess, sys\n{IMPORT}\n"
    code += f"print(priority.raise_priority(), {PRIORITIES})\nprint({GROUP_SAYS}, flush=True)\n"
    code += f"subprocess.run([sys.executable, '-c', {child!r}])"
    first, nice, group, started = said(code, leads=True)
    assert (first, nice, started) == ("True", str(priority.FIRST_NICE), "0")
    assert group in ("None", str(priority.FIRST_NICE))


@RIGHT
def test_the_group_of_somebody_elses_session_stays_as_it_is() -> None:
    code = f"import os\n{IMPORT}\nbefore = {GROUP_SAYS}\n"
    code += f"print(priority.raise_priority(), before == ({GROUP_SAYS}))"
    assert said(code) == ["True", "True"]


def test_who_was_given_a_lower_priority_keeps_it() -> None:
    code = f"import os\n{IMPORT}\nos.nice(3)\nwas = {PRIORITIES}\n"
    code += f"print(priority.raise_priority(), {PRIORITIES} == was)"
    assert said(code) == ["False", "True"]


@RIGHT
@pytest.mark.privileged
async def test_the_supervisor_comes_before_programs_that_stand_back_and_its_zygotes_do_not() -> None:
    if os.getpriority(os.PRIO_PROCESS, 0) != 0:
        pytest.skip("these tests have a priority of their own, and so has what they start")
    async with SandboxPool(nice=5) as pool:
        shown = await pool.run(f"import os; print({PRIORITIES})")
        family = {one.pid: one.name for one in proctree.tree([pool.supervisor_pid])}
        others = {os.getpriority(os.PRIO_PROCESS, pid) for pid in family if pid != pool.supervisor_pid}
        assert os.getpriority(os.PRIO_PROCESS, pool.supervisor_pid) == priority.FIRST_NICE
        assert (shown.stdout, others) == ("5\n", {0}), family
    async with SandboxPool() as pool:
        assert os.getpriority(os.PRIO_PROCESS, pool.supervisor_pid) == 0


@NEW
async def test_programs_have_short_slices_until_they_are_no_longer_young() -> None:
    """All threads of a program, which may have started them when it was young."""
    code = "import threading\nthreading.Thread(target=input).start()\nwhile True: pass"
    async with SandboxPool() as pool, asyncio.TaskGroup() as tasks:
        family = {one.pid for one in proctree.tree([pool.supervisor_pid])}

        def slices() -> set[int]:
            programs = {one.pid for one in proctree.tree([pool.supervisor_pid])} - family
            threads = [thread for pid in programs for thread in os.listdir(f"/proc/{pid}/task")]
            return {priority.slice_of_thread(int(thread)) for thread in threads}

        call = tasks.create_task(pool.run(code))
        async with asyncio.timeout(PATIENCE_S):
            while min(found := slices(), default=0) <= priority.SLICE_NS:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert len(found) == 1 and priority.slice_of_thread(pool.zygotes["stdlib"][-1]) == priority.SLICE_NS
        call.cancel()


@NEW
@pytest.mark.skipif(not bash.offered(), reason="needs the bash flavour: `rocstar sandbox doctor` says why not")
async def test_what_a_program_starts_has_no_short_slices() -> None:
    """Nobody takes those away when it is no longer young: it would come before all others for life."""
    request = ExecRequest(code="(while :; do :; done) & while :; do :; done", flavour="bash")
    async with SandboxPool(("bash",)) as pool, asyncio.TaskGroup() as tasks:
        call = tasks.create_task(pool.run(request))
        await until(lambda: any(map(children_of, programs_of(pool))))
        (leader,) = programs_of(pool)
        assert all(priority.slice_of_thread(pid) > priority.SLICE_NS for pid in (leader, *children_of(leader)))
        call.cancel()
