"""The findings of an analysis as sentences, each derived from an interval.

An interval that contains the null gives "no significant difference". An estimate from fewer than MIN_TASKS
tasks gives no finding, because an interval over so few tasks is unreliable.
"""

from __future__ import annotations

import math
from typing import Final

from rocstar.train.reading.analysis.statistics.estimates import BootstrapEstimate, ClassShare, ControlComparison
from rocstar.train.reading.analysis.token_classes import TokenClass

MIN_TASKS: Final = 8

NAMES: Final = {
    TokenClass.first_of_turn: "first tokens of turns that answer no tool",
    TokenClass.after_ok: "first tokens after a good tool response",
    TokenClass.after_error: "first tokens after a failing tool response",
    TokenClass.call: "tool calls",
    TokenClass.answer: "answers",
    TokenClass.reason_before_call: "reasoning before a call",
    TokenClass.reason_before_answer: "reasoning in turns without a call",
}
BEHIND: Final = {"any": "any tool response", "ok": "a good tool response", "error": "a failing tool response"}


def behind_sentence(name: str, found: ControlComparison) -> str:
    """Return the finding on the first tokens after tool output."""
    what = f"After {BEHIND[name]}"
    ratio = found.ratio
    if not ratio.num_tokens:
        return f"{what}: no token was seen."
    if why := _too_little(ratio):
        return f"{what}: {why}."
    direction = ("no significant difference", "uncertain more often", "uncertain less often")
    times = f"{ratio.value:.2f} times as often as in other turns [{ratio.low:.2f}, {ratio.high:.2f}]"
    return f"{what}: {direction[ratio.lies_beyond(1.0)]}, {times}."


def class_sentence(name: TokenClass, found: ClassShare) -> str:
    """Return the finding on a class of tokens."""
    what = NAMES[name].capitalize()
    if not found.lift.num_tokens:
        return f"{what}: none were seen."
    if why := _too_little(found.lift):
        return f"{what}: {why}."
    share = f"{percent(found.of_top)} of the top fifth, {found.of_all:.0%} of all tokens"
    verdict = ("no significant difference", "more uncertain than most", "less uncertain than most")
    return f"{what}: {verdict[found.lift.lies_beyond(1.0)]} ({share})."


def _too_little(estimate: BootstrapEstimate) -> str:
    """Return the reason for not stating a finding, or ""."""
    if estimate.num_tasks < MIN_TASKS:
        return f"{estimate.num_tokens} tokens of {estimate.num_tasks} tasks are too few"
    if math.isnan(estimate.value) or not all(map(math.isfinite, (estimate.low, estimate.high))):
        return f"{estimate.num_tokens} tokens are too few: the interval is unbounded"
    return ""


def percent(e: BootstrapEstimate) -> str:
    """Format a share with its interval."""
    return f"{e.value:.0%} [{e.low:.0%}, {e.high:.0%}]"
