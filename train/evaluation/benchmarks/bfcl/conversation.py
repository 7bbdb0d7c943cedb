"""The rule for several user messages, and who speaks next in them. Pure.

    turns of the policy --messages_answered--> for each user message the calls of its steps --> simulation
                        --follow_up----------> the user's next message, or nothing any more

A user message is over with the first turn that calls nothing that can be read (one undecodable call spoils
all calls of its turn), or after 20 steps, which ends the conversation. After every message the simulated
objects have to be in the state that the due calls give, and the results of the due calls have to be among
those that the policy has seen so far. Source: BFCL v3, `multi_turn_checker.py` and `base_handler.py` of
bfcl-eval 2025.8.6.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rocstar.engine.types import Turn
from rocstar.train.evaluation.benchmarks.bfcl.calls import Call

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of one user message when its calls were executed beside the due ones."""

    results: Sequence[str]
    due: Sequence[str]
    same_state: bool


def read_calls(turn: Turn) -> list[Call] | None:
    """The calls of a turn; None where one of them cannot be read. A last one whose tag never closes is no
    call."""
    written = turn.calls
    if written and (written[-1].malformed or "").startswith("missing "):
        written = written[:-1]
    calls = [(call.name, call.arguments) for call in written]
    read = [(name, arguments) for name, arguments in calls if name is not None and arguments is not None]
    return read if len(read) == len(written) else None


def messages_answered(turns: Sequence[Turn]) -> tuple[list[list[list[Call]]], bool]:
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


def is_forced(turns: Sequence[Turn]) -> bool:
    """Whether the last user message has taken more steps than it may."""
    messages, over = messages_answered(turns)
    return bool(messages) and not over and len(messages[-1]) > MAX_STEPS


def judge(called: Sequence[Sequence[Sequence[Call]]], played: Sequence[Played]) -> Finding:
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
