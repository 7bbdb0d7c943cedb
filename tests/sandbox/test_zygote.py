"""The parts of the zygote and of the cell runner that can be tried without forking."""

import hashlib
import io
import linecache
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from rocstar.sandbox.child import cell, error_text, zygote

from ..patience import PATIENCE_S

T = TypeVar("T")


@pytest.fixture
def error_stream(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "__stderr__", stream)
    return stream


@pytest.fixture(autouse=True)
def pytest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that exits takes its process with it: no thread would start here afterwards."""

    def finish(exit_code: int) -> int:
        cell.flush()
        return exit_code

    monkeypatch.setattr(cell, "finish", finish)


@pytest.fixture
def main_names() -> Iterator[dict[str, Any]]:
    names = cell.MAIN.__dict__
    before = dict(names)
    yield names
    names.clear()
    names.update(before)


@pytest.mark.parametrize(
    ("source", "exit_code", "stderr"),
    [
        (b"x = 1", 0, ""),
        (b"1;", 0, ""),
        (b"raise SystemExit", 0, ""),
        (b"raise SystemExit(300)", 44, ""),
        (b"raise SystemExit('why')", 1, "why\n"),
        (b"raise MemoryError", cell.MEMORY_EXIT, "MemoryError\n"),
        (b"raise KeyboardInterrupt", 1, "KeyboardInterrupt\n"),
        (b"(", 1, "SyntaxError: '(' was never closed\n"),
        (b"raise ExceptionGroup('g', [ValueError(1)])", 1, "ValueError: 1\n"),
        (b"class S:\n    def __str__(self): 1 / 0\nraise SystemExit(S())", 1, "\n"),
        (
            b"import sys\nclass E(Exception):\n    def __str__(self): return str(sys.exc_info())\nraise E",
            1,
            "E: (None,",
        ),
        (b"x = " + b"+".join([b"1"] * 1500), 0, ""),
    ],
)
def test_exit_codes_and_reports(
    error_stream: io.StringIO, main_names: dict[str, Any], source: bytes, exit_code: int, stderr: str
) -> None:
    assert cell.run_source(source) == exit_code
    assert stderr in error_stream.getvalue()
    assert "sandbox/child/cell.py" not in error_stream.getvalue()


WALK = """
files, frame = [], sys._getframe()
while frame:
    files.append(frame.f_code.co_filename)
    frame = frame.f_back
"""


@pytest.mark.parametrize("evaluate", [cell.evaluate, cell.evaluate_tree])
@pytest.mark.parametrize("end", ["print()", "files", "await last()"])
def test_a_program_has_no_frame_of_ours_below_its_own(evaluate: Any, end: str) -> None:
    names: dict[str, Any] = {}
    evaluate(f"import sys\nasync def last(): pass\n{WALK}\n{end}", names, cell.CELL)
    files = names["files"]
    assert files[0] == cell.CELL and cell.__file__ not in files
    assert (len(files) == 1) == ("await" not in end)
    assert sys._getframe().f_back is not None  # those of the caller are there again


def in_a_fork(work: Callable[[], T]) -> T:
    """A program's end is a process's: it runs all exit handlers, and those of this one (torch has some that
    take its operators away) are to run later."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with os.fdopen(write, "wb") as file:
                pickle.dump(work(), file)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        told = file.read()
    os.waitpid(pid, 0)
    found: T = pickle.loads(told)
    return found


def test_the_source_of_a_program_has_the_lines_of_its_tracebacks() -> None:
    source = cell.source_of_program()
    source[0] = "x = 1\nx / 0"
    assert list(linecache.getlines(cell.CELL)) == ["x = 1\n", "x / 0\n"]


def test_no_memory_left_even_for_the_report(monkeypatch: pytest.MonkeyPatch, error_stream: io.StringIO) -> None:
    def no_memory(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(error_text, "error_text", no_memory)
    assert cell.run_source(b"raise MemoryError") == cell.MEMORY_EXIT
    assert error_stream.getvalue() == "MemoryError\n"


def test_cells_are_numbered_and_end_only_when_they_exit(
    monkeypatch: pytest.MonkeyPatch, error_stream: io.StringIO, main_names: dict[str, Any]
) -> None:
    monkeypatch.setattr(cell, "_cells", 0)
    monkeypatch.setattr(cell, "reseed", lambda seed: main_names.update(seed=seed))
    assert cell.run_session_cell(b"x = seed", 5) == (0, b"", False)
    assert cell.run_session_cell(b"seed = 6\nx", 7) == (0, b"5", False)  # only the first cell is seeded
    assert cell.run_session_cell(b"x / 0", None) == (1, b"", False)
    assert 'File "<cell 3>", line 1' in error_stream.getvalue()
    assert cell.run_session_cell(b"'\\ud800'", None) == (0, b"'\\ud800'", False)
    assert cell.run_session_cell(b"raise SystemExit(3)", None) == (3, b"", True)


def test_seeding_reaches_every_generator() -> None:
    import random

    import numpy.random
    import sympy.core.random as sympy_random

    states = random.getstate(), numpy.random.get_state(), sympy_random.rng.getstate()
    try:
        draws = []
        for seed in (5, 5, 6):
            cell.reseed(seed)
            draws.append((random.random(), numpy.random.rand(), sympy_random.rng.random()))
        assert draws[0] == draws[1]
        assert all(a != b for a, b in zip(draws[0], draws[2], strict=True))
        assert draws[0][0] == random.Random(5).random()
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        sympy_random.rng.setstate(states[2])


@pytest.mark.parametrize("goes", ["sleeps", "computes", "computes without the lock"])
def test_threads_are_given_time_until_they_wait(goes: str) -> None:
    """In a fork, where no others are. A thread that was forgotten under way kept what it held for ever."""

    def work() -> bool:
        arrived: list[bool] = []

        def go() -> None:
            if goes == "sleeps":
                for _ in range(200):
                    time.sleep(0.001)
            elif goes == "computes":
                sum(range(10_000_000))
            else:
                hashlib.pbkdf2_hmac("sha256", b"", b"", 500_000)
            arrived.append(True)
            threading.Event().wait()

        threading.Thread(target=go, daemon=True).start()
        zygote.wait_for_idle_threads(PATIENCE_S)
        return bool(arrived)

    assert in_a_fork(work)


@pytest.mark.parametrize("under_way", ["R (running)", "D (disk sleep)"])
def test_a_thread_that_waits_for_a_processor_is_not_at_rest(monkeypatch: pytest.MonkeyPatch, under_way: str) -> None:
    turns = iter([f"State:\t{under_way}\n"] * 3 + ["State:\tS (sleeping)\n"] * 2)
    monkeypatch.setattr(zygote.os, "listdir", lambda folder: ["0"])
    monkeypatch.setattr(zygote, "switches_of", lambda status: next(turns))
    monkeypatch.setattr(zygote.threading, "active_count", lambda: 2)
    zygote.wait_for_idle_threads(PATIENCE_S)
    assert next(turns, None) is None


def test_what_is_read_of_a_thread() -> None:
    read = zygote.switches_of("/proc/thread-self/status")
    assert "State:\tR" in read and "voluntary_ctxt_switches:" in read
    assert zygote.switches_of("/proc/self/task/0/status") == ""


def test_threads_that_never_rest_are_waited_for_no_longer_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(zygote.time, "monotonic", lambda: next(clock) / 2)
    monkeypatch.setattr(zygote, "switches_of", lambda status: f"{status}{next(clock)}")
    monkeypatch.setattr(zygote.threading, "active_count", lambda: 2)
    zygote.wait_for_idle_threads()
    assert next(clock) < 10


def test_a_parent_that_is_gone_ends_the_zygote_at_once() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zygote._native, "die_with_parent", lambda parent: False)
        assert zygote.main(["--flavour=stdlib", "--fd=1", "--parent=1"]) == 0
