"""The Python tool that TRL's trainer is given, for the peer's interpreter: standard library only.

bare       a worker forked once, with an alarm and a memory limit and no isolation: the cheapest there is
confined   rocstar's tool service over one kept connection: the tool of rocstar's rollouts, call by call
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import multiprocessing
import resource
import signal
from collections.abc import Callable
from typing import Any

Run = Callable[[str], tuple[bool, str]]
"""From a program to whether it ended without an error, and what its caller is told."""

WALL_S, MEMORY_BYTES, NOTHING = 2.0, 16 << 30, "(no output)"
CONFINED = {"wall_s": WALL_S, "memory_bytes": 256 << 20}


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


def confined(port: int) -> Run:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(body: str) -> http.client.HTTPResponse:
        connection.request("POST", "/v1/run", body, {"Content-Type": "application/json"})
        return connection.getresponse()

    def run(code: str) -> tuple[bool, str]:
        body = json.dumps({"code": code, "flavour": "stdlib", "limits": CONFINED})
        try:
            answer = ask(body)
        except (ConnectionError, http.client.HTTPException):  # the service closes what was idle for an update
            connection.close()
            answer = ask(body)
        result = json.loads(answer.read())
        if answer.status != 200:
            raise RuntimeError(f"the service answered {answer.status}: {result}")
        if result["status"] == "ok":
            return True, result["stdout"].strip("\n") or NOTHING
        return False, (result["stderr"].strip().splitlines() or [result["status"]])[-1]

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
