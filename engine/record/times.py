"""When a trajectory happened, as JSON: spans as pairs of seconds, to a tenth of a millisecond.

{"began": 1700000000.123, "ended_s": 9.5, "granted_s": 0.1, "judged": [9.0, 9.5],
 "turns": [[0.0, 4.2, [[4.2, 9.0]]], ...]}          a turn: from, to, and the same of each result
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rocstar.engine.types import Span, TrajectoryTimes, TurnTimes

PLACES = 4


def encode_times(times: TrajectoryTimes) -> dict[str, Any]:
    """The times as JSON."""
    return {
        "began": round(times.began, PLACES),
        "ended_s": round(times.ended_s, PLACES),
        "granted_s": None if times.granted_s is None else round(times.granted_s, PLACES),
        "judged": _pair(times.judged),
        "turns": [[*_numbers(turn.written), [_pair(call) for call in turn.calls]] for turn in times.turns],
    }


def decode_times(told: Mapping[str, Any] | None) -> TrajectoryTimes | None:
    """Return the times of a record; None if it has none."""
    if told is None:
        return None
    return TrajectoryTimes(
        began=told["began"],
        ended_s=told["ended_s"],
        granted_s=told["granted_s"],
        judged=_span(told["judged"]),
        turns=tuple(
            TurnTimes(written=Span(start, end), calls=tuple(_span(call) for call in calls))
            for start, end, calls in told["turns"]
        ),
    )


def _numbers(span: Span) -> list[float]:
    return [round(span.start_s, PLACES), round(span.end_s, PLACES)]


def _pair(span: Span | None) -> list[float] | None:
    return None if span is None else _numbers(span)


def _span(pair: Any) -> Span | None:
    return None if pair is None else Span(*pair)
