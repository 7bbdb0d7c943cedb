"""BFCL v3 as a built-in set: function calls in 17 categories, four of them with several user messages.

    SimulatedUser.answer <- turns so far: the user's next message | results of calls | None at the end
    FunctionJudge.score <- Attempt: the calls of one turn, or a replay of all calls with the due ones

Both depend on the turns only, so a stored attempt gets the same verdict. In conversations each waits for the
simulation.

A user message ends with the first turn without readable calls (one malformed call invalidates all calls of
its turn), or after 20 steps, which ends the conversation. After each message the simulated objects must have
the state of the due calls, and the results of the due calls must be among those that the policy has received
so far.

    non_live   = mean(mean(simple, java, javascript), multiple, parallel, parallel_multiple, irrelevance)
    live       = mean over its categories, weighted by their numbers of questions
    multi_turn = mean(base, miss_func, miss_param, long_context)
    overall    = mean(non_live, live, multi_turn)

Source: BFCL v3, `multi_turn_checker.py`, `base_handler.py` and `eval_runner_helper.py` of bfcl-eval
2025.8.6.2.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean

from rocstar.engine.types import Attempt, Outcome, Scored, Task, ToolResult, Turn
from rocstar.train.evaluation.benchmarks.benchmark import benchmark_of
from rocstar.train.evaluation.benchmarks.bfcl.calls import Call, Language, match_due_calls
from rocstar.train.evaluation.benchmarks.bfcl.entries import SIZES, is_multi_turn, load_tasks
from rocstar.train.evaluation.benchmarks.bfcl.gold import gold, near_miss
from rocstar.train.evaluation.benchmarks.bfcl.simulation import CallHung, MessageOutcome, Simulation


@dataclass(frozen=True, slots=True)
class SimulatedUser:
    """The counterpart of a task: a scripted user, and simulated objects that answer calls.

    Invariant: its answers depend only on the task and the turns so far.
    """

    simulation: Simulation = field(default_factory=Simulation)

    async def answer(
        self, task: Task, turns: Sequence[Turn], *, deadline: float | None
    ) -> tuple[ToolResult, ...] | str | None:
        """Return the results of the last turn's calls, or the user's next message; None at the end of the
        attempt."""
        if not is_multi_turn(task.meta["category"]):
            return None
        messages, over = split_messages(turns)
        if messages and not over and len(messages[-1]) > MAX_STEPS:
            return None
        if over:
            said: Sequence[str] = task.meta["follow_ups"]
            return said[len(messages) - 1] if len(messages) <= len(said) else None
        called = [[call for step in steps for call in step] for steps in messages]
        number = len(turns[-1].calls)
        try:
            async with asyncio.timeout_at(deadline):
                played = await self.simulation.play(task.meta, called, due=False)
        except CallHung as hung:
            return (ToolResult(status=TIMED_OUT, is_error=True, text=f"TimeoutError: {hung}"),) * number
        return tuple(
            ToolResult(status="error" if raised else "ok", is_error=raised, text=text)
            for text, raised in played[-1].results[-number:]
        )


@dataclass(frozen=True, slots=True)
class FunctionJudge:
    """Scores an attempt by the published rule: 1 if correct, else 0."""

    simulation: Simulation = field(default_factory=Simulation)

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        """Judge an attempt; actions of the policy are never Failed. ToolFailure if the simulated classes
        cannot run."""
        category: str = attempt.task.meta["category"]
        calls = read_calls(attempt.turns[0]) if attempt.turns else []
        if category.endswith("relevance"):
            # The published rule: malformed JSON is not a call, so it counts as an abstention.
            called = bool(calls)
            right = called is not category.endswith("irrelevance")
            why = "called" if called else "abstained"
        elif is_multi_turn(category):
            right, why = await self._conversation(attempt, deadline)
        else:
            meta = attempt.task.meta
            language = Language(meta["language"])
            right = calls is not None and match_due_calls(meta["described"], calls, meta["due"], language=language)
            why = "undecodable" if calls is None else "calls_match" if right else "calls_differ"
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
                played = await self.simulation.play(meta, called, due=True)
        except CallHung:
            return False, "simulation_hung"
        verdict = judge_conversation(messages, played)
        return verdict is Finding.right, verdict.value


def measures(attempt: Attempt) -> Mapping[str, float]:
    """Return 1 for a question that no function answers if the policy made no call at all, malformed ones
    included.

    Each of the two categories has its own column, so that `overall` can compose their means.
    """
    category = str(attempt.task.meta["category"])
    if not category.endswith("irrelevance"):
        return {}
    tried = any(turn.calls for turn in attempt.turns)
    silent = bool(attempt.turns) and not tried and not attempt.is_truncated
    return {f"{category}/{NO_CALL_ATTEMPTED}": float(silent)}


MAX_STEPS = 20
"""The maximum turns with calls for a user message."""
TIMED_OUT = "timeout"
"""The status of results of a turn whose calls timed out; they had no effect, and have none in a replay."""


class Finding(StrEnum):
    """The reason of a verdict on a conversation."""

    right = "turns_match"
    messages_missing = "messages_not_reached"
    nothing_called = "nothing_called"
    state_differs = "state_differs"
    result_missing = "result_missing"


def read_calls(turn: Turn) -> list[Call] | None:
    """Return the calls of a turn, or None if one is malformed. A last call with an unclosed tag is
    ignored."""
    written = turn.calls
    if written and (written[-1].malformed or "").startswith("missing "):
        written = written[:-1]
    calls = [(call.name, call.arguments) for call in written]
    read = [(name, arguments) for name, arguments in calls if name is not None and arguments is not None]
    return read if len(read) == len(written) else None


def split_messages(turns: Sequence[Turn]) -> tuple[list[list[list[Call]]], bool]:
    """Return the steps with calls of each user message, and True if the last message has ended."""
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


def judge_conversation(called: Sequence[Sequence[Sequence[Call]]], played: Sequence[MessageOutcome]) -> Finding:
    """Return the verdict on the answered messages.

    Args:
        called: by user message, the steps of the policy.
        played: by user message of the task, the outcome of its calls.
    """
    if len(called) != len(played):
        return Finding.messages_missing
    seen: Counter[str] = Counter()
    for steps, message in zip(called, played, strict=True):
        seen.update(text for text, _ in message.results)
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
"""The column of questions that no function answers: 1 if the policy made no call, malformed ones included."""
IRRELEVANCE = ["irrelevance", "live_irrelevance"]
LIVE = [category for category in SIZES if category.startswith("live_")]
MULTI_TURN = [category for category in SIZES if category.startswith("multi_turn_")]


def overall(means: Mapping[str, float]) -> dict[str, float]:
    """Return the composed scores whose categories are present; upstream counts a missing category as 0.

    If `means` has the second column of both irrelevance categories (`measures`), the scores with these
    instead of the published rule's are added under names that end in NO_CALL_ATTEMPTED.
    """
    composed = _composed(means)
    strict = {c: means[f"{c}/{NO_CALL_ATTEMPTED}"] for c in IRRELEVANCE if f"{c}/{NO_CALL_ATTEMPTED}" in means}
    if len(strict) == len(IRRELEVANCE):
        again = _composed({**means, **strict})
        composed |= {f"{name}/{NO_CALL_ATTEMPTED}": value for name, value in again.items() if name != "multi_turn"}
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


BFCL_V3 = benchmark_of(
    "bfcl_v3",
    load=load_tasks,
    judge=FunctionJudge,
    gold=gold,
    near_miss=near_miss,
    measures=measures,
    overall=overall,
    counterpart=SimulatedUser,
)
