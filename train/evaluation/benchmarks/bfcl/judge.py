"""Who answers the policy in BFCL v3, and who judges it: the rules applied to an attempt.

    SimulatedUser.answer <- turns so far: the user's next message | results of calls | nothing, it is over
    FunctionJudge.score <- Attempt: the calls of one turn, or a replay of all beside the due ones

Both read the turns alone, so a stored attempt is judged again as it was. Who waits: each for the simulation,
and only in conversations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from rocstar.engine.types import Attempt, Outcome, Scored, Task, ToolResult, Turn
from rocstar.train.evaluation.benchmarks.bfcl.calls import Language, calls_are_due
from rocstar.train.evaluation.benchmarks.bfcl.conversation import (
    TIMED_OUT,
    Finding,
    is_forced,
    judge,
    messages_answered,
    read_calls,
)
from rocstar.train.evaluation.benchmarks.bfcl.entries import is_multi_turn
from rocstar.train.evaluation.benchmarks.bfcl.score import NO_CALL_ATTEMPTED
from rocstar.train.evaluation.benchmarks.bfcl.simulation import CallHung, Simulation


class SimulatedUser:
    """The other side of a task: a user with a script, and simulated objects that answer calls.

    Invariant: what it says depends on the task and the turns so far alone.
    """

    def __init__(self, simulation: Simulation | None = None) -> None:
        self._simulation = simulation or Simulation()

    async def answer(
        self, task: Task, turns: Sequence[Turn], *, deadline: float | None
    ) -> tuple[ToolResult, ...] | str | None:
        """Results of the last turn's calls, or what the user says next; None when the attempt is over."""
        if not is_multi_turn(task.meta["category"]) or is_forced(turns):
            return None
        messages, over = messages_answered(turns)
        if over:
            said: Sequence[str] = task.meta["follow_ups"]
            return said[len(messages) - 1] if len(messages) <= len(said) else None
        called = [[call for step in steps for call in step] for steps in messages]
        number = len(turns[-1].calls)
        try:
            async with asyncio.timeout_at(deadline):
                answer = await self._simulation.play(task.meta, called, due=False)
        except CallHung as hung:
            return (ToolResult(status=TIMED_OUT, is_error=True, text=f"TimeoutError: {hung}"),) * number
        return tuple(
            ToolResult(status="error" if raised else "ok", is_error=raised, text=text)
            for text, raised in answer.results[-1][-number:]
        )


class FunctionJudge:
    """Scores an attempt at a task of BFCL v3 by the published rule: 1 if right, else 0."""

    def __init__(self, simulation: Simulation | None = None) -> None:
        self._simulation = simulation or Simulation()

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        """Never Failed for what the policy did; ToolFailure where the simulated classes cannot be run."""
        category: str = attempt.task.meta["category"]
        if category.endswith("relevance"):
            right, why = _relevance(attempt, category)
        elif is_multi_turn(category):
            right, why = await self._conversation(attempt, deadline)
        else:
            right, why = _single(attempt)
        return Scored(reward=float(right), method=why, is_correct=right)

    async def _conversation(self, attempt: Attempt, deadline: float | None) -> tuple[bool, str]:
        meta = attempt.task.meta
        messages, _ = messages_answered(attempt.turns)
        if attempt.is_truncated:
            return False, "truncated"
        if len(messages) != len(meta["due"]):
            return False, Finding.messages_missing.value
        called = [[call for step in steps for call in step] for steps in messages]
        try:
            async with asyncio.timeout_at(deadline):
                answer = await self._simulation.play(meta, called, due=True)
        except CallHung:
            return False, "simulation_hung"
        verdict = judge(messages, answer.played)
        return verdict is Finding.right, verdict.value


def _single(attempt: Attempt) -> tuple[bool, str]:
    calls = _first_calls(attempt)
    if calls is None:
        return False, "undecodable"
    meta = attempt.task.meta
    right = calls_are_due(meta["described"], calls, meta["due"], language=Language(meta["language"]))
    return right, "calls_match" if right else "calls_differ"


def _relevance(attempt: Attempt, category: str) -> tuple[bool, str]:
    """The published rule: a call is one that can be decoded, so that broken JSON counts as an abstention."""
    called = bool(_first_calls(attempt))
    return called is not category.endswith("irrelevance"), "called" if called else "abstained"


def _first_calls(attempt: Attempt) -> list[Any] | None:
    return read_calls(attempt.turns[0]) if attempt.turns else []


def measures(attempt: Attempt) -> Mapping[str, float]:
    """Tell whether a question that no function answers was finished without any call, decodable or not.

    A column for each of the two categories, so that their means can be composed (score.py).
    """
    category = str(attempt.task.meta["category"])
    if not category.endswith("irrelevance"):
        return {}
    tried = any(turn.calls for turn in attempt.turns)
    silent = bool(attempt.turns) and not tried and not attempt.is_truncated
    return {f"{category}/{NO_CALL_ATTEMPTED}": float(silent)}
