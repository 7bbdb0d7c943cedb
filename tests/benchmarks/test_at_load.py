"""The load is held by counting, the loops end with it, and the command's exit code is the script's."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "at_load.py"

sys.path.insert(0, str(SCRIPT.parent))
from at_load import Held, hold, next_busy, runnable  # noqa: E402


class Counted:
    """Stands for Loops: as many run as it was last told."""

    def __init__(self, number: int) -> None:
        self.busy, self.processes = number, [None] * number

    def run(self, busy: int) -> None:
        self.busy = busy


def held_with(others: list[int], target: int = 8) -> Held:
    """The load while the command and the rest of the machine have `others` runnable, one number a sample."""
    loops, turns = Counted(target), itertools.count()
    of_turn = iter(others)
    return hold(
        target,
        loops,  # type: ignore[arg-type]
        lambda: next(turns) == len(others),
        sample=lambda: next(of_turn) + loops.busy,
        sleep=lambda seconds: None,
    )


def test_a_command_that_idles_is_filled_up_and_one_that_works_is_left_to_it() -> None:
    held = held_with([0] * 20 + [3] * 20 + [0] * 20)
    assert held.samples[10:20] == [8] * 10
    assert held.samples[30:40] == [8] * 10
    assert held.samples[50:60] == [8] * 10


def test_a_machine_that_is_busier_than_asked_gets_no_loop() -> None:
    assert held_with([12] * 10).samples[-1] == 12


@pytest.mark.parametrize(
    ("sample", "busy", "then"),
    [(8, 5, 5), (7, 5, 6), (9, 5, 4), (4, 2, 4), (12, 3, 1), (20, 3, 0), (0, 8, 8)],
)
def test_the_number_of_loops_goes_half_the_way(sample: int, busy: int, then: int) -> None:
    assert next_busy(8, sample, busy, limit=8) == then


def test_the_report_has_mean_and_ends() -> None:
    assert str(Held(8, [7, 8, 9])) == "at_load: wanted 8 runnable, held 8.0 (from 7 to 9 in 3 samples)"
    assert "before a sample" in str(Held(8))


def test_this_machine_can_be_counted() -> None:
    assert 0 <= runnable() < 100_000


def at_load(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, "--load", "2", "--", *command],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("ends", "code"), [("exit 7", 7), ("kill -TERM $$", 143)])
def test_the_commands_exit_code_and_output_are_the_scripts(ends: str, code: int) -> None:
    ended = at_load("sh", "-c", f"echo said; {ends}")
    assert ended.returncode == code
    said, last = ended.stdout.splitlines()
    assert said == "said" and f"sh ended with {code} after" in last


def test_a_command_that_is_not_there_is_named() -> None:
    ended = at_load("no-such-command")
    assert ended.returncode == 2 and "there is no command no-such-command" in ended.stderr


def test_the_loops_die_with_the_script() -> None:
    """Killed, it cannot clean up. The command tells who its siblings are; then a pipe that all hold ends."""
    tell = (
        "import os; p = os.getppid(); print(open(f'/proc/{p}/task/{p}/children').read(), flush=True); input()"
    )
    script = subprocess.Popen(
        [sys.executable, SCRIPT, "--load", "2", "--", sys.executable, "-c", tell],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert script.stdout is not None and script.stdin is not None
    assert len(script.stdout.readline().split()) == 3
    script.kill()
    assert script.stdout.read() == ""  # until nobody can write to it any more
    script.wait()
    script.stdin.close()
    script.stdout.close()
