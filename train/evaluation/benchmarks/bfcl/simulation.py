"""The simulated classes in their own process, and the handling of calls that do not return.

    Simulation.play --one line--> simulated.py --one line--> MessageOutcomes

A trajectory or its judge waits for one request at a time. A request without a timely response kills the
process, and the next one starts another. The process exits when its stdin closes, so with its parent.
"""

import asyncio
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstar.engine.tools.tool import ToolFailure
from rocstar.train.evaluation.benchmarks.benchmark import LOCAL
from rocstar.train.evaluation.benchmarks.bfcl.calls import Call
from rocstar.train.evaluation.benchmarks.bfcl.entries import FUNCTION_FILES, INSTALL, MODULES

PROGRAM = Path(__file__).with_name("simulated.py")
TIMEOUT_S = 10.0


class CallHung(Exception):
    """A call of the policy exceeded its time limit or the memory of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOutcome:
    """The outcome of one user message: its results, with True for a call that raised, and those of the due
    calls."""

    results: Sequence[tuple[str, bool]]
    due: Sequence[str]
    same_state: bool


class Simulation:
    """One process at a time, started at the first request.

    Invariant: a response depends on its request only.

    Args:
        python: of an environment with the imports of the classes: mpmath.
        timeout_s: of a request.
    """

    def __init__(self, *, python: str = sys.executable, timeout_s: float = TIMEOUT_S) -> None:
        self._python, self._timeout_s = python, timeout_s
        # One thread for one process: requests queue here, not in the shared pool of threads.
        self._asking = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bfcl")
        self._process: subprocess.Popen[str] | None = None
        self._package: str | None = None

    async def play(
        self, meta: Mapping[str, Any], messages: Sequence[Sequence[Call]], *, due: bool
    ) -> list[MessageOutcome]:
        """Execute the calls of each user message on new objects, and the due ones too if asked.

        Args:
            meta: `Task.meta` of a conversation.

        Raises:
            CallHung: a call of the policy did not return.
            ToolFailure: the classes cannot run, or the due calls alone do not return.
        """
        asked: dict[str, Any] = {
            "classes": {
                name: ".".join(["bfcl_eval", *MODULES.parts, FUNCTION_FILES[name]]) for name in meta["classes"]
            },
            "config": meta["config"],
            "long": "long_context" in meta["category"],
            "messages": messages,
            "due": meta["due"] if due else None,
        }
        package = str(meta[LOCAL]["package"])
        loop = asyncio.get_running_loop()
        response = await loop.run_in_executor(self._asking, self._answer, package, asked)
        return [
            MessageOutcome(results=[(text, raised) for text, raised in results], due=due_results, same_state=same)
            for results, due_results, same in response["messages"]
        ]

    def close(self) -> None:
        """Kill the process; the next request starts another."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _answer(self, package: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        if (answer := self._ask(package, asked)) is not None:
            return answer
        if self._ask(package, {**asked, "messages": []}) is not None:
            raise CallHung(f"a call did not end within {self._timeout_s} s, or ended the process")
        raise ToolFailure(
            f"cannot run the simulated classes of {package}. Install mpmath and the package of `{INSTALL}`.",
            retryable=False,
        )

    def _ask(self, package: str, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the response, or None if the process exited or exceeded its time and was killed."""
        process = self._running(package)
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(self._timeout_s, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = ""
        finally:
            timer.cancel()
        if not answer.endswith("\n"):
            self.close()
            return None
        response: dict[str, Any] = json.loads(answer)
        return response

    def _running(self, package: str) -> subprocess.Popen[str]:
        if self._process is not None and self._package == package and self._process.poll() is None:
            return self._process
        self.close()
        self._process = subprocess.Popen(
            [self._python, "-I", str(PROGRAM), package],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        self._package = package
        weakref.finalize(self, _end, self._process)
        return self._process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:  # unwritten data has no reader any more
                continue
