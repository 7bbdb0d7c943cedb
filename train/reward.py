"""What a finished trajectory earned: 0, 1, or nothing because we failed to tell.

    policy text ──> strict extraction ──> equal? ──> cheap rules ──> sandbox, flavour `verifier` ──> Outcome
                          | no box            | yes        | decided         | hang, crash, SandboxError
                          v                   v            v                 v
                       Scored 0            Scored 1    Scored 0 or 1       Failed

Graders hang and some of them evaluate the text they grade, so they run as killable programs off the event
loop, with the wall clock kept from outside. A grader that gives no verdict is our failure: never a reward.
"""

from __future__ import annotations

import base64
import json
import math
import pickle
import re
import secrets
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from functools import cache
from typing import Any

from rocstar.engine.types import Failed, Outcome, Scored, Task
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, Sandbox, SandboxError, Status
from rocstar.train.columns import MARKS_OF_REASONING_GYM
from rocstar.train.config import ConfigError
from rocstar.train.verify import exact_match, extract_answer, normalise, plain_numbers_equal

VERIFIER_FLAVOUR = "verifier"
MAX_ANSWER_CHARACTERS = 10_000
"""A longer boxed value is scored 0 unread."""

_WORDS = re.compile(r"[A-Za-z]{3,}(?: [A-Za-z]+)*")

# The nonce is read after grading: text that a grader evaluates cannot find it among the variables.
_VERDICT = """
verdict = grade(json.loads(sys.stdin.readline()))
print(f"\\n{sys.stdin.readline().strip()} {int(verdict)}")
"""

MATH_VERIFY_PROGRAM = f"""\
import json, logging, sys
from math_verify import LatexExtractionConfig, parse, verify

logging.disable()
how = {{"extraction_config": [LatexExtractionConfig(boxed_match_priority=0)], "parsing_timeout": None}}


def grade(job):
    gold = parse("\\\\boxed{{" + job["truth"] + "}}", **how)
    prediction = parse("\\\\boxed{{" + job["prediction"] + "}}", **how)
    return bool(gold) and bool(prediction) and verify(gold, prediction, timeout_seconds=None)

{_VERDICT}"""

REASONING_GYM_PROGRAM = f"""\
import base64, json, pickle, sys
from reasoning_gym import get_score_answer_fn


def grade(job):
    score_answer = get_score_answer_fn(job["family"])
    entry = pickle.loads(base64.b64decode(job["entry"]))
    try:
        return score_answer(job["prediction"], entry) == 1.0
    except Exception:  # scorers raise on answers of another form: the score was not 1.0
        return False

{_VERDICT}"""


class _Scorer(StrEnum):
    """How a reasoning-gym family scores."""

    default = "default"
    """1.0 iff the answer equals the oracle's"""
    decimal = "decimal"
    """1.0 iff both are the same decimal, commas aside"""
    own = "own"
    """by code of its own"""


DECIMAL_FAMILIES = frozenset({"chain_sum", "products"})


@cache
def _scorer(family: str) -> _Scorer:
    from reasoning_gym.dataset import ProceduralDataset
    from reasoning_gym.factory import DATASETS

    if family not in DATASETS:
        raise ConfigError(
            f"task family {family!r} is unknown to the installed reasoning-gym; load the tasks again"
        )
    if DATASETS[family][0].score_answer is ProceduralDataset.score_answer:
        return _Scorer.default
    return _Scorer.decimal if family in DECIMAL_FAMILIES else _Scorer.own


class Judge:
    """Scores trajectories. `wall_s` limits one run of a grader.

    Invariant: `Scored` means that a rule or a grader gave a verdict; 1 means that the task's own score is
    exactly 1.0 (contract 7). A sandbox without a verdict gives `Failed`.
    """

    def __init__(self, sandbox: Sandbox, *, wall_s: float = 6.0) -> None:
        self._sandbox = sandbox
        self._limits = Limits(wall_s=wall_s, cpu_s=math.ceil(wall_s) + 1, output_bytes=1 << 16)

    async def score(
        self, policy_text: str, task: Task, *, truncated: bool, deadline: float | None
    ) -> Outcome:
        """`policy_text` is what the policy wrote, without any tool output. `deadline` is a `loop.time()`."""
        if truncated:
            return Scored(reward=0.0, method="truncated")
        extraction = extract_answer(policy_text)
        if extraction.answer is None:
            return Scored(reward=0.0, method=str(extraction.failure))
        if len(extraction.answer) > MAX_ANSWER_CHARACTERS:
            return Scored(reward=0.0, method="too_long")
        if task.meta.keys() >= MARKS_OF_REASONING_GYM:
            return await self._score_reasoning_gym(extraction.answer, task, deadline)
        return await self._score_mathematics(extraction.answer, task.answer, deadline)

    async def _score_reasoning_gym(self, prediction: str, task: Task, deadline: float | None) -> Outcome:
        truth = task.answer.strip()
        if prediction and prediction == truth:
            return Scored(reward=1.0, method="exact")
        family = str(task.meta["family"])
        scorer = _scorer(family)
        if scorer is _Scorer.default:
            return Scored(reward=0.0, method="reasoning_gym")
        if scorer is _Scorer.decimal:
            return Scored(reward=float(_decimals_equal(prediction, truth)), method="reasoning_gym")
        entry = base64.b64encode(pickle.dumps(task.meta["entry"])).decode()
        job = {"family": family, "prediction": prediction, "entry": entry}
        return await self._ask(REASONING_GYM_PROGRAM, job, "reasoning_gym", deadline)

    async def _score_mathematics(self, prediction: str, truth: str, deadline: float | None) -> Outcome:
        if exact_match(prediction, truth):
            return Scored(reward=1.0, method="exact")
        left, right = normalise(prediction), normalise(truth)
        equal = plain_numbers_equal(left, right)
        if equal is not None:
            return Scored(reward=float(equal), method="numeric")
        if ("%" in left) != ("%" in right):  # math-verify takes 42% for 42
            return Scored(reward=0.0, method="percent")
        if _WORDS.fullmatch(right):  # math-verify reads words as products of letters: anagrams are equal
            return Scored(reward=0.0, method="text")
        job = {"prediction": left, "truth": right}
        return await self._ask(MATH_VERIFY_PROGRAM, job, "math_verify", deadline)

    async def _ask(self, program: str, job: dict[str, Any], method: str, deadline: float | None) -> Outcome:
        """Run a grader; its verdict counts only behind the nonce of this call."""
        nonce = secrets.token_hex(16)
        request = ExecRequest(
            code=program, stdin=f"{json.dumps(job)}\n{nonce}\n", limits=self._limits, flavour=VERIFIER_FLAVOUR
        )
        try:
            result = await self._sandbox.run(request, deadline=deadline)
        except SandboxError as error:
            return Failed(kind=f"verifier_{error.kind}", retryable=error.retryable, detail=str(error))
        if result.status is not Status.OK:
            return Failed(kind=f"verifier_{result.status}", retryable=False, detail=_detail(result))
        last_line = result.stdout.rstrip("\n").rpartition("\n")[2]
        if last_line not in (f"{nonce} 0", f"{nonce} 1"):
            return Failed(kind="verifier_no_verdict", retryable=False, detail=_detail(result))
        return Scored(reward=float(last_line[-1]), method=method)


def _decimals_equal(prediction: str, truth: str) -> bool:
    try:
        return Decimal(prediction.replace(",", "")) == Decimal(truth.replace(",", ""))
    except InvalidOperation:
        return False


def _detail(result: ExecResult) -> str:
    return f"{result.status} after {result.wall_s:.1f} s: {(result.stderr or result.stdout)[-500:]}"
