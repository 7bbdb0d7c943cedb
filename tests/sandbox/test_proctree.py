"""A tree's CPU counts living descendants and reaped children."""

import os
import subprocess
import sys

import pytest

from rocstar.sandbox import proctree

BURN = "import time\nwhile time.process_time() < 0.2: pass\n"
BURN_IN_CHILD = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])\n"


def waiting(code: str) -> subprocess.Popen[bytes]:
    """A process that has run `code` and now waits for its standard input to close."""
    script = code + "print('ready', flush=True)\ninput()\n"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process


def test_a_name_with_spaces_and_parentheses_does_not_shift_the_fields() -> None:
    numbers = " ".join(str(number) for number in range(1, 50))
    process = proctree.parse_stat(f"12 (a) b (c) S {numbers}")
    assert (process.pid, process.name, process.state) == (12, "a) b (c", "S")
    # Fields 4, 14 to 17 and 22 of proc(5), which counts from 1 with the state third.
    assert process.parent == 1
    assert (process.cpu_ticks, process.reaped_ticks, process.start_ticks) == (11 + 12, 13 + 14, 19)


@pytest.mark.parametrize("code", [BURN, BURN_IN_CHILD], ids=["itself", "a reaped child"])
def test_cpu_of_a_tree_has_what_its_members_and_their_reaped_children_used(code: str) -> None:
    with waiting(code) as process:
        used = proctree.cpu_s([process.pid])
        assert used >= 0.2 - 4 / proctree.TICKS_PER_S
        process.communicate(b"\n")


def test_a_descendant_is_in_the_tree_once_and_a_stranger_is_not() -> None:
    with waiting("") as one, waiting("") as other:
        pids = [member.pid for member in proctree.tree([os.getpid(), one.pid])]
        assert pids.count(one.pid) == 1 and other.pid in pids
        assert [member.pid for member in proctree.tree([one.pid])] == [one.pid]
        one.communicate(b"\n")
        other.communicate(b"\n")
    assert proctree.tree([one.pid]) == []


def test_a_child_that_has_ended_and_waits_to_be_reaped_is_no_descendant() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended
    assert child in [member.pid for member in proctree.tree([os.getpid()])]
    with waiting("") as other:
        found = proctree.descendants(os.getpid())
        assert other.pid in found and child not in found and os.getpid() not in found
        other.communicate(b"\n")
    os.waitpid(child, 0)
