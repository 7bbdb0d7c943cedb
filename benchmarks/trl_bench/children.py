"""The parent's end of `wire`: children on the cores they are given, a thread for each, asked in turn.

The parent waits for the child it asked; the others sleep in a read of their input meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ANSWER_TIMEOUT_S = 1800.0


class ChildError(RuntimeError):
    """A child ended, or did not answer in time; the message has the last lines it wrote."""


class Child:
    """A script of this folder under some interpreter, pinned to `cores` (`1`, or `0,1`).

    Invariant: between two questions it uses no CPU.
    """

    def __init__(
        self, name: str, python: Path, script: str, arguments: Sequence[str], *, cores: str, threads: int | None = None
    ) -> None:
        """`threads` of torch; None: one for each core."""
        self.name = name
        torch_threads = str(threads or num_threads(cores))
        environment = {
            **os.environ,
            **{"OMP_NUM_THREADS": torch_threads, "MKL_NUM_THREADS": torch_threads},
            "TOKENIZERS_PARALLELISM": "false",
            **{"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "TRANSFORMERS_VERBOSITY": "error"},
        }
        self._log: list[str] = []
        self._process = subprocess.Popen(
            ["taskset", "-c", cores, str(python), str(HERE / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):  # it ended before it read all
            self._process.stdin.close()  # the end of its input ends it
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and wait for the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure("ended") from None
        return self.hear()

    def hear(self, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """The next answer, also the unasked one that says that the child is ready."""
        from trl_bench.wire import MARK

        assert self._process.stdout is not None
        alarm = threading.Timer(timeout_s, self._process.kill)
        alarm.start()
        try:
            for line in self._process.stdout:
                if line.startswith(MARK):
                    found: dict[str, Any] = json.loads(line[len(MARK) :])
                    return found
                self._log = [*self._log[-40:], line]
        finally:
            alarm.cancel()
        raise self._failure("ended or did not answer")

    def _failure(self, what: str) -> ChildError:
        return ChildError(f"{self.name} {what}:\n" + "".join(self._log))


def num_threads(cores: str) -> int:
    """A thread for each core of a list such as `0,1`."""
    return len(cores.split(","))
