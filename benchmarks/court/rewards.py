"""Rewards of arms."""

from __future__ import annotations

import hashlib

from rocstar.engine.types import Attempt, Failed
from rocstar.sandbox.types import Sandbox
from rocstar.train.tasks.own_reward import Reward
from rocstar.train.tasks.reward import MathJudge


async def coin(attempt: Attempt, *, sandbox: Sandbox) -> Reward:
    """A reward that says nothing: a coin keyed by task and text. The correctness, which evaluations count, is that
    of reward.kind = "math"."""
    outcome = await MathJudge(sandbox).score(attempt, deadline=None)
    if isinstance(outcome, Failed):
        raise RuntimeError(outcome.detail)
    key = f"{attempt.task.id} {attempt.text}"
    return Reward(value=float(hashlib.sha256(key.encode()).digest()[0] % 2), is_correct=outcome.is_correct)
