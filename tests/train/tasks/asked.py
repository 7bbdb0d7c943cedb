"""Asking a real verifier on a busy machine."""

import asyncio

from rocstar.engine.types import Attempt, Failed, Outcome
from rocstar.train.tasks.reward import MathJudge

from ...patience import PATIENCE_S


async def score(judge: MathJudge, attempt: Attempt) -> Outcome:
    """Its outcome. A grader that had no core in its time has failed, and is asked again, as in a run."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            outcome = await judge.score(attempt, deadline=None)
            if not (isinstance(outcome, Failed) and outcome.retryable):
                return outcome
