"""The built-in reward, `reward.kind = "math"`: 0, 1, or none after an infrastructure failure.

    final turn ──> the boxed value ──> rules (compare.py) ──> sandbox, flavour `verifier` ──> Outcome
                      | no box             | decided             | hang, crash      | SandboxError
                      v                    v                     v                  v
                   Scored 0            Scored 0 or 1          Scored 0            Failed

No text of the policy is evaluated, and equality is exact. A prediction on which the grader
hangs or runs out of memory is wrong (`grader_limit`); a truth on which it does is our failure.
"""

from __future__ import annotations

import base64
import pickle
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from functools import cache

from rocstar.engine.types import GRADER_LIMIT, Attempt, Failed, Outcome, Scored, Task
from rocstar.sandbox.types import Sandbox
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.columns import MARKS_OF_REASONING_GYM
from rocstar.train.tasks.compare import AnswerPair, compare
from rocstar.train.tasks.families import families
from rocstar.train.tasks.grader import VERIFIER_FLAVOUR, Graded, Grader, GraderProgram
from rocstar.train.tasks.verify import extract_answer

__all__ = ["VERIFIER_FLAVOUR", "MathJudge"]

MAX_ANSWER_CHARACTERS = 10_000
"""A longer boxed value is scored 0 unread."""


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
    if family not in families():
        raise ConfigError(
            f"task family {family!r} is unknown to the installed reasoning-gym; load the tasks again"
        )
    from reasoning_gym.dataset import ProceduralDataset

    if families()[family][0].score_answer is ProceduralDataset.score_answer:
        return _Scorer.default
    return _Scorer.decimal if family in DECIMAL_FAMILIES else _Scorer.own


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
        extraction = extract_answer(attempt.turns)
        if extraction.answer is None:
            return Scored(reward=0.0, method=str(extraction.failure))
        if extraction.answer and extraction.answer == task.answer.strip():
            return Scored(reward=1.0, method="exact")
        if len(extraction.answer) > MAX_ANSWER_CHARACTERS:
            return Scored(reward=0.0, method="too_long")
        if task.meta.keys() >= MARKS_OF_REASONING_GYM:
            return await self._score_reasoning_gym(extraction.answer, task, deadline)
        comparison = compare(extraction.answer, task.answer)
        if not comparison.questions:
            return Scored(reward=float(comparison.verdict), method=comparison.method)
        return await self._score_by_algebra(comparison, deadline)

    async def _score_by_algebra(self, comparison: AnswerPair, deadline: float | None) -> Outcome:
        truths = list(dict.fromkeys(truth for _, truth in comparison.questions))
        jobs = [(prediction, truths.index(truth)) for prediction, truth in comparison.questions]
        graded = await self._grader.ask(
            GraderProgram.symbolic, truths, jobs, count=len(jobs), deadline=deadline
        )
        if isinstance(graded, Failed):
            return graded
        if graded.verdicts is None:
            return Scored(reward=0.0, method=GRADER_LIMIT)
        answers = dict(zip(comparison.questions, graded.verdicts, strict=True))
        return Scored(reward=float(comparison.decide(answers)), method=comparison.method)

    async def _score_reasoning_gym(self, prediction: str, task: Task, deadline: float | None) -> Outcome:
        family = str(task.meta["family"])
        scorer = _scorer(family)
        if scorer is _Scorer.default:
            return Scored(reward=0.0, method="reasoning_gym")
        if scorer is _Scorer.decimal:
            return Scored(reward=float(_decimals_equal(prediction, task.answer)), method="reasoning_gym")
        entry = base64.b64encode(pickle.dumps(task.meta["entry"])).decode()
        job = {"family": family, "entry": entry}
        graded = await self._grader.ask(
            GraderProgram.reasoning_gym, job, prediction, count=1, deadline=deadline
        )
        return _one(graded, "reasoning_gym")


def _one(graded: Graded | Failed, method: str) -> Outcome:
    if isinstance(graded, Failed):
        return graded
    if graded.verdicts is None:
        return Scored(reward=0.0, method=GRADER_LIMIT)
    return Scored(reward=float(graded.verdicts[0]), method=method)


def _decimals_equal(prediction: str, truth: str) -> bool:
    try:
        return Decimal(prediction.replace(",", "")) == Decimal(truth.strip().replace(",", ""))
    except InvalidOperation:
        return False
