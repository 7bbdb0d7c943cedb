"""Rewards that the rStar2-Agent report tried and dropped (arXiv 2508.20722, 4.3.1), as custom modules.

    rocstar train quickstart --reward.kind=examples/failed_ideas/ideas.py:answer_and_tools
    rocstar train quickstart --reward.kind=examples/failed_ideas/ideas.py:less_for_repeating
    rocstar train quickstart --reward.kind=examples/failed_ideas/ideas.py:mark_truncated \
        --rl.advantage=examples/failed_ideas/ideas.py:leave_out_truncated

Each begins with the verdict of the built-in judge, so `is_correct` has the same meaning with all of them: for
Resample-on-Correct and for an evaluation.
"""

import re
from collections import Counter
from collections.abc import Sequence

from rocstar.engine.types import Scored
from rocstar.sandbox.types import Sandbox
from rocstar.train.algorithm.advantages.sample import Advantage, Groups, Sample
from rocstar.train.tasks.own_reward import Attempt, Reward
from rocstar.train.tasks.reward import MathJudge

TRUNCATED = -1.0
"""The value that marks a truncated attempt between `mark_truncated` and `leave_out_truncated`."""
EPS = 1e-6


async def verdict(attempt: Attempt, sandbox: Sandbox) -> Scored:
    """Return the built-in judge's verdict. Raise RuntimeError if it failed: then the attempt has no
    reward."""
    outcome = await MathJudge(sandbox).score(attempt, deadline=None)
    if not isinstance(outcome, Scored):
        raise RuntimeError(f"the judge failed: {outcome.kind}: {outcome.detail}")
    return outcome


async def answer_and_tools(attempt: Attempt, *, sandbox: Sandbox, bonus: float = 0.5) -> Reward:
    """The answer's reward, and up to `bonus` for the share of tool calls that went well."""
    found = await verdict(attempt, sandbox)
    results = [result for turn in attempt.turns for result in turn.results]
    went_well = sum(not result.is_error for result in results) / len(results) if results else 0.0
    return Reward(value=found.reward + bonus * went_well, is_correct=found.is_correct, method=f"{found.method}+tools")


async def less_for_repeating(attempt: Attempt, *, sandbox: Sandbox, n: int = 4, weight: float = 0.5) -> Reward:
    """The answer's reward, less up to `weight` for the share of `n`-grams of words that were said before."""
    found = await verdict(attempt, sandbox)
    return Reward(
        value=found.reward - weight * repeated(attempt.text, n),
        is_correct=found.is_correct,
        method=f"{found.method}-repeats",
    )


def repeated(text: str, n: int) -> float:
    """Share of the n-grams of words and signs of a text that were in it before; 0 of a text without any."""
    words = re.findall(r"\w+|[^\w\s]", text)
    grams = Counter(zip(*(words[k:] for k in range(n)), strict=False))
    total = grams.total()
    return 1 - len(grams) / total if total else 0.0


async def mark_truncated(attempt: Attempt, *, sandbox: Sandbox) -> Reward:
    """The answer's reward; of a truncated attempt TRUNCATED, which `leave_out_truncated` looks for.

    `reward/mean` of such a run is not that of others; `reward/correct_share` is.
    """
    if attempt.is_truncated:
        return Reward(value=TRUNCATED, is_correct=False, method="truncated")
    found = await verdict(attempt, sandbox)
    return Reward(value=found.reward, is_correct=found.is_correct, method=found.method)


def leave_out_truncated(groups: Groups) -> list[list[Advantage]]:
    """GRPO over the siblings that ended by themselves; truncated ones teach nothing (overlong filtering)."""
    return [_of_group(group) for group in groups]


def _of_group(group: Sequence[Sample]) -> list[Advantage]:
    ended = [sample.reward for sample in group if sample.reward != TRUNCATED]
    mean = sum(ended) / len(ended) if ended else 0.0
    spread = (sum((reward - mean) ** 2 for reward in ended) / max(1, len(ended) - 1)) ** 0.5
    return [0.0 if sample.reward == TRUNCATED else (sample.reward - mean) / (spread + EPS) for sample in group]
