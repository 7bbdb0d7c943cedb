"""A fork of the warm Python that has imported a session's tests, and forks the session's test processes.

    pytest -n 4 ──starts, waits──> this process ──forks──> four test processes, which collect from its modules
         └───────────execnet, through clients of this process──────────┘

The import of conftests, tests and packages under test is the longest part before a test process's first test.
Here pytest collects once without running anything; a fork's pytest finds the imported modules. A file that
cannot be collected is forgotten, so that each fork tries it again and reports it.
"""

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

from .warm_python import open_listener, serve, warm

ADDED: list[str] = []
"""Folders that test files put first on the path; a test process starts without them."""


def start(arguments: Sequence[str], directory: Path) -> Path:
    """Return the executable that forks a test process; `arguments` and `directory` are the session's."""
    folder = Path(tempfile.mkdtemp(prefix="tests-", dir=warm().folder))
    process = subprocess.Popen(
        [str(warm().executable), "-m", "tests.warm_tests", str(folder), str(directory), *arguments],
        stdin=subprocess.PIPE,  # the process ends when this pipe closes
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    atexit.register(process.communicate)  # closes its standard input, and waits
    assert process.stdout is not None and process.stdout.readline() == "ready\n", "its message is above"
    return folder / "python"


class Forget:
    """A plugin that removes from `sys.modules` each test file that cannot be collected."""

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if not report.passed and isinstance(collector, pytest.Module):
            file = str(collector.path)
            for name in [name for name, one in sys.modules.items() if getattr(one, "__file__", None) == file]:
                del sys.modules[name]
        return report


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Discard standard output at its descriptor; `sys.stdout` stays the same object."""
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
    from . import warm_tests  # the module that test processes import; this one is `__main__`

    os.chdir(directory)
    before = list(sys.path)
    with _silent():
        # Without capture: a module may keep the `sys.stderr` of its import, which must be open in a fork.
        pytest.main([*arguments, "-n0", "--collect-only", "-q", "-s"], plugins=[Forget()])
    warm_tests.ADDED[:] = [one for one in sys.path if one not in before]
    assert threading.active_count() == 1, f"a fork would lose {threading.enumerate()}"
    listener = open_listener(folder)
    print("ready", flush=True)
    serve(listener)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
