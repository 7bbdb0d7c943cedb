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
from pathlib import Path
from typing import Any, Final, TypeAlias

from rocstar.engine.types import Failed
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, Sandbox, SandboxError, Status

VERIFIER_FLAVOUR: Final = "verifier"
READ: Final = "truths read"
"""The first words of a grader's output: a later failure is the prediction's."""
CPU_SHARE: Final = 2 / 3
"""CPU time limit as a share of the wall-clock limit: it stops an endless grader also on a busy machine."""
STARVED_SHARE: Final = 0.1
"""A grader with less CPU time than this share of its wall clock had no chance to grade."""


Verdicts: TypeAlias = tuple[bool, ...] | None
"""A verdict for each prediction; None if the predictions exceeded the grader's limits."""


class Grader:
    """Runs graders. `wall_s` limits one run.

    Invariant: every run ends in `Verdicts` or `Failed`. `Failed` means that the truth alone exceeded the
    limits, that the sandbox failed, or that it gave the grader no time.
    """

    def __init__(self, sandbox: Sandbox, *, wall_s: float) -> None:
        self._sandbox = sandbox
        self._limits = Limits(
            wall_s=wall_s, cpu_s=max(1, math.ceil(wall_s * CPU_SHARE)), output_bytes=1 << 16
        )

    async def ask(
        self, program: str, truth: Any, prediction: Any, *, count: int, deadline: float | None
    ) -> Verdicts | Failed:
        """Grade `count` predictions by grader_PROGRAM.py; both jobs are JSON values.

        `deadline` is a `loop.time()`.
        """
        code = Path(__file__).with_name(f"grader_{program}.py").read_text()
        nonce = secrets.token_hex(16)
        stdin = f"{json.dumps(truth)}\n{json.dumps(prediction)}\n{nonce}\n"
        request = ExecRequest(code=code, stdin=stdin, limits=self._limits, flavour=VERIFIER_FLAVOUR)
        try:
            result = await self._sandbox.run(request, deadline=deadline)
        except SandboxError as error:
            return Failed(kind=f"verifier_{error.kind}", retryable=error.retryable, detail=str(error))
        return self._read(result, nonce, count)

    def _read(self, result: ExecResult, nonce: str, count: int) -> Verdicts | Failed:
        said, _, bits = result.stdout.rstrip("\n").rpartition("\n")[2].partition(" ")
        if result.status is Status.OK and said == nonce and len(bits) == count and set(bits) <= set("01L"):
            return None if "L" in bits else tuple(bit == "1" for bit in bits)
        kind = f"verifier_{result.status}" if result.status is not Status.OK else "verifier_no_verdict"
        starved = result.status is Status.TIMEOUT and result.cpu_s < self._limits.wall_s * STARVED_SHARE
        if starved or not result.stdout.startswith(READ):
            output = (result.stderr or result.stdout)[-500:]
            detail = f"{result.status} after {result.wall_s:.1f} s: {output}"
            return Failed(kind=kind, retryable=starved, detail=detail)
        return None
