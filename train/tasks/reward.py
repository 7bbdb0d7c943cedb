"""The built-in reward, `reward.kind = "math"`: 0, 1, or `Failed` after an infrastructure failure.

    final turn ──> the boxed value ──> rules (compare.py) ──> sandbox, flavour `verifier` ──> Outcome
                      | no box             | decided             | hang, crash      | SandboxError
                      v                    v                     v                  v
                   Scored 0            Scored 0 or 1          Scored 0            Failed

No text of the policy is evaluated, and equality is exact. A prediction on which the grader
hangs or runs out of memory is wrong (`grader_limit`); a truth on which it does is our failure.

`reward.mode = "fused"` gives the verdicts of the original graders, to evaluate checkpoints, not to train:

    complete transcript with tool output ──> sandbox: grader_fused.py ──> right if one of two says so

The original grades truncated transcripts too, and accepts 4200, 0.42 and 42% for 42. Source: the released
code of arXiv 2508.20722, reimplemented from its description.
"""

import base64
import json
import math
import pickle
import secrets
from decimal import Decimal, InvalidOperation
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from rocstar.engine.types import GRADER_LIMIT, Attempt, Failed, Outcome, Scored, Task
from rocstar.sandbox.types import ExecRequest, Limits, Sandbox, SandboxError, Status
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.compare import compare
from rocstar.train.tasks.data import reasoning_gym
from rocstar.train.tasks.rows import MARKS_OF_REASONING_GYM
from rocstar.train.tasks.verify import extract_answer

VERIFIER_FLAVOUR: Final = "verifier"
READ: Final = "truths read"
"""The first words of a grader's output: a later failure is the prediction's."""
CPU_SHARE: Final = 2 / 3
"""CPU time limit as a share of the wall-clock limit: it stops an endless grader also on a busy machine."""
STARVED_SHARE: Final = 0.1
"""A grader with less CPU time than this share of its wall clock had no chance to grade."""


Verdicts: TypeAlias = tuple[bool, ...] | None
"""A verdict for each prediction; None if the predictions exceeded the grader's limits."""
MAX_ANSWER_CHARACTERS = 10_000
"""A longer boxed value is scored 0 unread."""
DECIMAL_FAMILIES = frozenset({"chain_sum", "products"})


class Grader:
    """Runs graders in the sandbox, and attributes a missing verdict to the prediction or to us.

        truth ──> "truths read" ──> predictions, nonce ──> "NONCE bits"
          | ends here: ours                | ends here: the prediction's

    Graders hang, and some of them evaluate the text that they grade, so they run as killable programs off the
    event loop, with the clocks kept from outside. The judge waits for one run at a time. `wall_s` limits one.

    Invariant: every run ends in `Verdicts` or `Failed`. `Failed` means that the truth alone exceeded the
    limits, that the sandbox failed, or that it gave the grader no time.
    """

    def __init__(self, sandbox: Sandbox, *, wall_s: float) -> None:
        self._sandbox = sandbox
        self._limits = Limits(wall_s=wall_s, cpu_s=max(1, math.ceil(wall_s * CPU_SHARE)), output_bytes=1 << 16)

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
        written, _, bits = result.stdout.rstrip("\n").rpartition("\n")[2].partition(" ")
        if result.status is Status.OK and written == nonce and len(bits) == count and set(bits) <= set("01L"):
            return None if "L" in bits else tuple(bit == "1" for bit in bits)
        kind = f"verifier_{result.status}" if result.status is not Status.OK else "verifier_no_verdict"
        starved = result.status is Status.TIMEOUT and result.cpu_s < self._limits.wall_s * STARVED_SHARE
        if starved or not result.stdout.startswith(READ):
            output = (result.stderr or result.stdout)[-500:]
            detail = f"{result.status} after {result.wall_s:.1f} s: {output}"
            return Failed(kind=kind, retryable=starved, detail=detail)
        return None


@cache
def _scorer(family: str) -> Literal["equal", "decimal", "program"]:
    """Return how a family scores: 1.0 if the answer equals the oracle's, also as a decimal, or by its own
    code."""
    families = reasoning_gym().factory.DATASETS
    if family not in families:
        raise ConfigError(f"task family {family!r} is unknown to the installed reasoning-gym; load the tasks again")
    from reasoning_gym.dataset import ProceduralDataset

    if families[family][0].score_answer is ProceduralDataset.score_answer:
        return "equal"
    return "decimal" if family in DECIMAL_FAMILIES else "program"


class MathJudge:
    """Scores the boxed value of an attempt. `wall_s` limits one run of a grader.

    Invariant: `Scored` 1 means that a rule or a proof found the value exactly equal to the truth, or that the
    task's own score is exactly 1.0 (contract 7). `Failed` is a failure of ours, never of the prediction.
    """

    def __init__(self, sandbox: Sandbox, *, wall_s: float = 6.0) -> None:
        self._grader = Grader(sandbox, wall_s=wall_s)

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        """Grade the policy's last turn. `deadline` is a `loop.time()`."""
        task = attempt.task
        if attempt.is_truncated:
            return Scored(reward=0.0, method="truncated")
        extraction = extract_answer(attempt)
        if extraction.answer is None:
            return Scored(reward=0.0, method=extraction.failure)
        if extraction.answer and extraction.answer == task.answer.strip():
            return Scored(reward=1.0, method="exact")
        if len(extraction.answer) > MAX_ANSWER_CHARACTERS:
            return Scored(reward=0.0, method="too_long")
        if task.meta.keys() >= MARKS_OF_REASONING_GYM:
            return await self._score_reasoning_gym(extraction.answer, task, deadline)
        comparison = compare(extraction.answer, task.answer)
        if not comparison.questions:
            return Scored(reward=float(comparison.verdict), method=comparison.method)
        truths = list(dict.fromkeys(truth for _, truth in comparison.questions))
        jobs = [(prediction, truths.index(truth)) for prediction, truth in comparison.questions]
        verdicts = await self._grader.ask("symbolic", truths, jobs, count=len(jobs), deadline=deadline)
        if not isinstance(verdicts, tuple):
            return _one(verdicts, comparison.method)
        answers = dict(zip(comparison.questions, verdicts, strict=True))
        return Scored(reward=float(comparison.decide(answers)), method=comparison.method)

    async def _score_reasoning_gym(self, prediction: str, task: Task, deadline: float | None) -> Outcome:
        family = str(task.meta["family"])
        scorer = _scorer(family)
        if scorer == "equal":
            return Scored(reward=0.0, method="reasoning_gym")
        if scorer == "decimal":
            try:
                left, right = (Decimal(text.replace(",", "")) for text in (prediction, task.answer.strip()))
            except InvalidOperation:
                return Scored(reward=0.0, method="reasoning_gym")
            return Scored(reward=float(left == right), method="reasoning_gym")
        entry = base64.b64encode(pickle.dumps(task.meta["entry"])).decode()
        job = {"family": family, "entry": entry}
        verdicts = await self._grader.ask("reasoning_gym", job, prediction, count=1, deadline=deadline)
        return _one(verdicts, "reasoning_gym")


class FusedJudge:
    """Scores a transcript as the original does: a text that its graders cannot read or finish is wrong.

    `wall_s` is the original's limit of one grading.
    """

    def __init__(self, sandbox: Sandbox, *, wall_s: float = 4.0) -> None:
        self._grader = Grader(sandbox, wall_s=wall_s)

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        """Grade the transcript. `deadline` is a `loop.time()`."""
        job = {"text": transcript(attempt), "truth": attempt.task.answer}
        verdicts = await self._grader.ask("fused", None, job, count=1, deadline=deadline)
        return _one(verdicts, "fused")


def transcript(attempt: Attempt) -> str:
    """Return the original's transcript: the policy's turns with the tool results between them."""
    parts = []
    for turn in attempt.turns:
        parts.append(turn.text)
        parts.extend(f"<tool_response>\n{result.text}\n</tool_response>" for result in turn.results)
    return "\n".join(parts)


def _one(verdicts: Verdicts | Failed, method: str) -> Outcome:
    """Return the outcome of one grading."""
    if isinstance(verdicts, Failed):
        return verdicts
    if verdicts is None:
        return Scored(reward=0.0, method=GRADER_LIMIT)
    return Scored(reward=float(verdicts[0]), method=method)
