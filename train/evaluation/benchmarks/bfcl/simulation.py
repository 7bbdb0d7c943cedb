"""The simulated classes in a process of their own: who asks it, and what happens when a call does not end.

    Simulation.play --one line--> simulated.py --one line--> PlayedMessages

Who waits: a trajectory or its judge, for one request at a time of the process; a request that is not answered
in time costs the process, and the next one starts another. The process ends when its stdin does, so with its
parent.
"""

from __future__ import annotations

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
from rocstar.train.evaluation.benchmarks.bfcl.calls import Call
from rocstar.train.evaluation.benchmarks.bfcl.entries import FUNCTION_FILES, INSTALL, LOCAL, MODULES

PROGRAM = Path(__file__).with_name("simulated.py")
TIMEOUT_S = 10.0


class CallHung(Exception):
    """A call of the policy did not end within the limit, or used up the memory of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOutcome:
    """What came of one user message when its calls were executed beside the due ones."""

    results: Sequence[str]
    due: Sequence[str]
    same_state: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Results of each user message with whether the call raised, and how they stand to the due ones."""

    results: Sequence[Sequence[tuple[str, bool]]]
    played: Sequence[MessageOutcome]


class Simulation:
    """One process at a time, started at the first request.

    Invariant: an answer is a function of its request, whatever was asked before.

    Args:
        python: of an environment that has the classes' imports: mpmath.
        timeout_s: of a request.
    """

    def __init__(self, *, python: str = sys.executable, timeout_s: float = TIMEOUT_S) -> None:
        self._python, self._timeout_s = python, timeout_s
        # One thread, for one process: requests queue here and not for the threads that others wait for.
        self._asking = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bfcl")
        self._process: subprocess.Popen[str] | None = None
        self._package: str | None = None

    async def play(
        self, meta: Mapping[str, Any], messages: Sequence[Sequence[Call]], *, due: bool
    ) -> ReplayResult:
        """Execute the calls of each user message on new objects, and the due ones beside them if asked.

        Args:
            meta: `Task.meta` of a conversation.

        Raises:
            CallHung: a call of the policy did not end.
            ToolFailure: the classes cannot be run, or the due calls alone do not end.
        """
        asked: dict[str, Any] = {
            "classes": {name: _module(name) for name in meta["classes"]},
            "config": meta["config"],
            "long": "long_context" in meta["category"],
            "messages": messages,
            "due": meta["due"] if due else None,
        }
        package = str(meta[LOCAL]["package"])
        loop = asyncio.get_running_loop()
        told = await loop.run_in_executor(self._asking, self._answer, package, asked)
        results = [[(text, bool(raised)) for text, raised in message] for message in told["results"]]
        played = [
            MessageOutcome(results=[text for text, _ in called], due=due_results, same_state=same)
            for called, due_results, same in zip(results, told["due"], told["same_state"], strict=False)
        ]
        return ReplayResult(results=results, played=played)

    def close(self) -> None:
        """End the process; the next request starts another."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _answer(self, package: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        if (answer := self._ask(package, asked)) is not None:
            return answer
        if self._ask(package, {**asked, "messages": []}) is not None:
            raise CallHung(f"a call did not end within {self._timeout_s} s, or ended the process")
        raise ToolFailure(
            f"the simulated classes of {package} do not run; they need the package of `{INSTALL}` and mpmath",
            retryable=False,
        )

    def _ask(self, package: str, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer; None where the process ended, or did not answer in time and was ended."""
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
        told: dict[str, Any] = json.loads(answer)
        return told

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
            except OSError:  # what was not written is for nobody any more
                continue


def _module(name: str) -> str:
    return ".".join(["bfcl_eval", *MODULES.parts, FUNCTION_FILES[name]])
