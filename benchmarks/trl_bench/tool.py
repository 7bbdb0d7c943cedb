"""The Python tool of TRL's trainer, for the peer's interpreter: standard library only.

A worker forked once, with an alarm and a memory limit and no isolation: the cheapest tool there is.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import resource
import signal
from collections.abc import Callable
from typing import Any

Run = Callable[[str], tuple[bool, str]]
"""From a program to whether it ended without an error, and its output."""

WALL_S, MEMORY_BYTES, NOTHING = 2.0, 16 << 30, "(no output)"


def bare() -> Run:
    context = multiprocessing.get_context("fork")
    mine, its = context.Pipe()
    context.Process(target=_work, args=(its,), daemon=True).start()
    its.close()

    def run(code: str) -> tuple[bool, str]:
        mine.send(code)
        fine, text = mine.recv()
        return fine, text

    return run


def _work(pipe: Any) -> None:
    """Runs programs until the other end hangs up."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    while True:
        try:
            code = pipe.recv()
        except EOFError:
            return
        pipe.send(_run(code))


def _run(code: str) -> tuple[bool, str]:
    def stop(*_: Any) -> None:
        raise TimeoutError("timed out")

    out = io.StringIO()
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, WALL_S)
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(code, "<tool>", "exec"), {"__name__": "__main__"})
    except BaseException as error:  # whatever a program does is its answer
        said = error.msg if isinstance(error, SyntaxError) else error  # without the line, as in a traceback
        return False, f"{type(error).__name__}: {said}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return True, out.getvalue().strip("\n") or NOTHING
