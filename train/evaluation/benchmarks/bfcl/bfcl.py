"""Who answers the policy in BFCL v3, and who judges it: the rules applied to an attempt.

    SimulatedUser.answer <- turns so far: the user's next message | results of calls | nothing, it is over
    FunctionJudge.score <- Attempt: the calls of one turn, or a replay of all beside the due ones

Both read the turns alone, so a stored attempt is judged again as it was. Who waits: each for the simulation,
and only in conversations.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import fmean
from typing import Any

from rocstar.engine.types import Attempt, Outcome, Scored, Task, ToolResult, Turn
from rocstar.train.evaluation.benchmarks.benchmark import Asking, Benchmark, Defaults, Published
from rocstar.train.evaluation.benchmarks.bfcl.calls import Call, Language, match_due_calls
from rocstar.train.evaluation.benchmarks.bfcl.entries import (
    INSTALL,
    MAX_TURNS,
    SIZES,
    is_multi_turn,
    load_tasks,
)
from rocstar.train.evaluation.benchmarks.bfcl.gold import gold, near_miss
from rocstar.train.evaluation.benchmarks.bfcl.simulation import CallHung, MessageOutcome, Simulation


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
        if not is_multi_turn(task.meta["category"]) or exceeds_steps(turns):
            return None
        messages, over = split_messages(turns)
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
        messages, _ = split_messages(attempt.turns)
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
        verdict = judge_conversation(messages, answer.played)
        return verdict is Finding.right, verdict.value


def _single(attempt: Attempt) -> tuple[bool, str]:
    calls = _first_calls(attempt)
    if calls is None:
        return False, "undecodable"
    meta = attempt.task.meta
    right = match_due_calls(meta["described"], calls, meta["due"], language=Language(meta["language"]))
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


MAX_STEPS = 20
"""Turns with calls that a user message may take."""
TIMED_OUT = "timeout"
"""Status of the results of a turn whose calls did not end; they had no effect, then or in a replay."""


class Finding(StrEnum):
    """Why a conversation is right or wrong."""

    right = "turns_match"
    messages_missing = "messages_not_reached"
    nothing_called = "nothing_called"
    state_differs = "state_differs"
    result_missing = "result_missing"


def read_calls(turn: Turn) -> list[Call] | None:
    """The calls of a turn; None where one of them cannot be read. A last one whose tag never closes is no
    call."""
    written = turn.calls
    if written and (written[-1].malformed or "").startswith("missing "):
        written = written[:-1]
    calls = [(call.name, call.arguments) for call in written]
    read = [(name, arguments) for name, arguments in calls if name is not None and arguments is not None]
    return read if len(read) == len(written) else None


def split_messages(turns: Sequence[Turn]) -> tuple[list[list[list[Call]]], bool]:
    """The steps of each user message that called something, and whether the last message is over."""
    messages: list[list[list[Call]]] = []
    over = True
    for turn in turns:
        if over:
            messages.append([])
        calls = read_calls(turn)
        over = not calls
        if calls and any(result.status == TIMED_OUT for result in turn.results):
            calls = []
        messages[-1].append(calls or [])
        if over:
            messages[-1].pop()
    return messages, over


def exceeds_steps(turns: Sequence[Turn]) -> bool:
    """Whether the last user message has taken more steps than it may."""
    messages, over = split_messages(turns)
    return bool(messages) and not over and len(messages[-1]) > MAX_STEPS


def judge_conversation(
    called: Sequence[Sequence[Sequence[Call]]], played: Sequence[MessageOutcome]
) -> Finding:
    """The verdict on the messages that were answered.

    Args:
        called: by user message, the steps of the policy.
        played: by user message of the task, what came of it.
    """
    if len(called) != len(played):
        return Finding.messages_missing
    seen: Counter[str] = Counter()
    for steps, message in zip(called, played, strict=True):
        seen.update(message.results)
        if not message.due:
            continue
        if not any(steps):
            return Finding.nothing_called
        if not message.same_state:
            return Finding.state_differs
        if Counter(message.due) - seen:
            return Finding.result_missing
    return Finding.right


NO_CALL_ATTEMPTED = "no_call_attempted"
"""The column of a question that no function answers: it was finished without any call, decodable or not."""
IRRELEVANCE = ["irrelevance", "live_irrelevance"]
LIVE = [category for category in SIZES if category.startswith("live_")]
MULTI_TURN = [category for category in SIZES if category.startswith("multi_turn_")]


def overall(means: Mapping[str, float]) -> dict[str, float]:
    """The composed scores whose categories are all there; upstream counts a missing one as 0.

    Where `means` has the second column of both irrelevance categories too (judge.measures), the scores come a
    second time with these in the place of the published rule's, under names that end in NO_CALL_ATTEMPTED.
    """
    composed = _composed(means)
    strict = {
        c: means[f"{c}/{NO_CALL_ATTEMPTED}"] for c in IRRELEVANCE if f"{c}/{NO_CALL_ATTEMPTED}" in means
    }
    if len(strict) == len(IRRELEVANCE):
        again = _composed({**means, **strict})
        composed |= {
            f"{name}/{NO_CALL_ATTEMPTED}": value for name, value in again.items() if name != "multi_turn"
        }
    return composed


def _composed(means: Mapping[str, float]) -> dict[str, float]:
    composed: dict[str, float] = {}
    simple = ["simple", "java", "javascript"]
    others = ["multiple", "parallel", "parallel_multiple", "irrelevance"]
    if means.keys() >= {*simple, *others}:
        composed["non_live"] = fmean([fmean(means[c] for c in simple), *(means[c] for c in others)])
    if means.keys() >= set(LIVE):
        composed["live"] = sum(means[c] * SIZES[c] for c in LIVE) / sum(SIZES[c] for c in LIVE)
    if means.keys() >= set(MULTI_TURN):
        composed["multi_turn"] = fmean(means[c] for c in MULTI_TURN)
    if len(composed) == 3:
        composed["overall"] = fmean(composed.values())
    return composed


BFCL_V3 = Benchmark(
    name="bfcl_v3",
    title="Berkeley Function-Calling Leaderboard v3",
    num_questions=sum(SIZES.values()),
    licence="Apache-2.0",
    source=Published(
        repository="",
        revision="58f57e91^ of ShishirPatil/gorilla, whose files are those of bfcl-eval 2025.8.6.2",
        file=f"the folder that `{INSTALL}` makes",
        digest="5fa6e72a1a6c506416f1a7c293dc29977cb40b55d1f4935554064fd542e83276",
    ),
    asking=Asking.functions,
    load=load_tasks,
    judge=FunctionJudge,
    gold=gold,
    near_miss=near_miss,
    measures=measures,
    overall=overall,
    counterpart=SimulatedUser,
    defaults=Defaults(samples=1, temperature=0.0, max_turns=MAX_TURNS),
)
