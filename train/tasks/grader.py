"""Run a grader in the sandbox, and attribute a missing verdict to the prediction or to us.

    truth ──> "truths read" ──> predictions, nonce ──> "NONCE bits"
      | ends here: ours                | ends here: the prediction's

Graders hang, and some of them evaluate the text that they grade, so they run as killable programs off the
event loop, with the clocks kept from outside. The judge waits for one run at a time.
"""

from __future__ import annotations

import json
import math
import secrets
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from rocstar.engine.types import Failed
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, Sandbox, SandboxError, Status

VERIFIER_FLAVOUR: Final = "verifier"
READ: Final = "truths read"
"""The first word of a grader: from here on, what happens is the prediction's doing."""
CPU_SHARE: Final = 2 / 3
"""Wall-clock limit: an endless grader is stopped by its CPU time limit, on a busy machine too."""
STARVED_SHARE: Final = 0.1
"""A grader that had less processor time than this of its wall clock was not given the time to grade."""


class GraderProgram(StrEnum):
    """The graders, by file name."""

    symbolic = "grader_symbolic.py"
    reasoning_gym = "grader_reasoning_gym.py"
    fused = "grader_fused.py"

    @property
    def source(self) -> str:
        """Return the program's text."""
        return Path(__file__).with_name(self.value).read_text()


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """A verdict for each prediction; None = the predictions took more than the grader's limits."""

    verdicts: tuple[bool, ...] | None


class Grader:
    """Runs graders. `wall_s` limits one run.

    Invariant: every run ends in `Graded` or `Failed`, and `Failed` means that the truth alone was too much,
    that the sandbox failed, or that it gave the grader no time.
    """

    def __init__(self, sandbox: Sandbox, *, wall_s: float) -> None:
        self._sandbox = sandbox
        self._limits = Limits(
            wall_s=wall_s, cpu_s=max(1, math.ceil(wall_s * CPU_SHARE)), output_bytes=1 << 16
        )

    async def ask(
        self, program: GraderProgram, truth: Any, prediction: Any, *, count: int, deadline: float | None
    ) -> Graded | Failed:
        """Grade `count` predictions; both jobs are JSON values. `deadline` is a `loop.time()`."""
        nonce = secrets.token_hex(16)
        stdin = f"{json.dumps(truth)}\n{json.dumps(prediction)}\n{nonce}\n"
        request = ExecRequest(code=program.source, stdin=stdin, limits=self._limits, flavour=VERIFIER_FLAVOUR)
        try:
            result = await self._sandbox.run(request, deadline=deadline)
        except SandboxError as error:
            return Failed(kind=f"verifier_{error.kind}", retryable=error.retryable, detail=str(error))
        return self._read(result, nonce, count)

    def _read(self, result: ExecResult, nonce: str, count: int) -> Graded | Failed:
        said, _, bits = result.stdout.rstrip("\n").rpartition("\n")[2].partition(" ")
        if result.status is Status.OK and said == nonce and len(bits) == count and set(bits) <= set("01L"):
            return Graded(verdicts=None if "L" in bits else tuple(bit == "1" for bit in bits))
        kind = f"verifier_{result.status}" if result.status is not Status.OK else "verifier_no_verdict"
        starved = result.status is Status.TIMEOUT and result.cpu_s < self._limits.wall_s * STARVED_SHARE
        if starved or not result.stdout.startswith(READ):
            return Failed(kind=kind, retryable=starved, detail=_detail(result))
        return Graded(verdicts=None)


def _detail(result: ExecResult) -> str:
    return f"{result.status} after {result.wall_s:.1f} s: {(result.stderr or result.stdout)[-500:]}"
