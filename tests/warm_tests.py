"""A fork of the warm Python that has imported a session's tests, and forks the session's test processes.

    pytest -n 4 ──starts, waits──> this ──forks──> four test processes, which collect what is imported
         └───────────execnet, through clients of it──────────┘

Importing conftests, tests and packages under test takes a test process longer than anything else before its
first test, and each did it by itself. Here pytest collects once without running anything; a fork's pytest
finds the modules and collects from them. A file that cannot be collected is forgotten, so that the forks try
it again and report it. Who waits: pytest for this, then as always.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest

from .warm_python import open_door, serve, warm

ADDED: list[str] = []
"""Folders that test files put first on the path. A test process starts with the path of who started it."""


def started(arguments: Sequence[str], directory: Path) -> Path:
    """The executable that forks a test process; `arguments` and `directory` are those of the session."""
    folder = Path(tempfile.mkdtemp(prefix="tests-", dir=warm().folder))  # and goes when that goes
    process = subprocess.Popen(
        [str(warm().executable), "-m", "tests.warm_tests", str(folder), str(directory), *arguments],
        stdin=subprocess.PIPE,  # whose end is its end: held in `atexit`
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    atexit.register(process.communicate)  # closes its standard input, and waits
    assert process.stdout is not None and process.stdout.readline() == "ready\n", "its message is above"
    return folder / "python"


class Forget:
    """A plugin: what could not be collected counts as never imported."""

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if not report.passed and isinstance(collector, pytest.Module):
            for name in [name for name, module in sys.modules.items() if _file_of(module) == collector.path]:
                del sys.modules[name]
        return report


def _file_of(module: object) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file) if file else None


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Standard output goes nowhere; `sys.stdout` is the same."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def main(folder: Path, directory: Path, arguments: Sequence[str]) -> None:
    from . import warm_tests  # as test processes know it: this is `__main__`

    os.chdir(directory)
    before = list(sys.path)
    with _silent():
        # Without capture: what a module keeps of `sys.stderr` as it is imported must be open in a fork.
        pytest.main([*arguments, "-n0", "--collect-only", "-q", "-s"], plugins=[Forget()])
    warm_tests.ADDED[:] = [one for one in sys.path if one not in before]
    assert threading.active_count() == 1, f"a fork would lose {threading.enumerate()}"
    door = open_door(folder)
    print("ready", flush=True)
    serve(door)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
