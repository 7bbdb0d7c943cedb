"""Alarms of liveness: the run does not move, or moves without learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rocstar.train.reading.diagnosis.alarm import History, Row, Sounds
from rocstar.train.reading.diagnosis.history import last, metric, percents, ratio, usual

STALL: Final = 6.0
STALL_S: Final = 10.0
FAILED: Final = 0.05


def work_s(row: Row) -> float | None:
    """Seconds of a step, less those of evaluation and checkpoint."""
    whole = metric("time/step")(row)
    aside = [metric(f"time/{name}", absent=0.0)(row) or 0.0 for name in ("eval", "checkpoint")]
    return None if whole is None else whole - sum(aside)


def patience_s(usual_s: float) -> float:
    """How long a step may take where one takes so long."""
    return max(STALL * usual_s, usual_s + STALL_S)


def _stall(history: History) -> str | None:
    now, before = last(history, work_s, 1), usual(history, work_s, least=5)
    if now is None or before is None or now[0] <= patience_s(before):
        return None
    return f"the step took {now[0]:.0f} s, the steps before {before:.1f} s (median)"


def _no_signal(history: History) -> str | None:
    used = last(history, metric("groups/used"))
    if used is None or any(used):
        return None
    rewards = last(history, metric("reward/mean")) or []
    why = "" if not rewards else ": all wrong" if max(rewards) <= 0 else f", rewards {percents(rewards)}"
    return f"no group of the last {len(used)} steps gave an advantage{why}"


def _paused(history: History) -> str | None:
    paused = last(history, metric("gate/paused"), 1)
    return "the off-policy gate let no update through" if paused and paused[0] else None


def _nonfinite(history: History) -> str | None:
    names = sorted(name for name, value in history.rows[-1].items() if value is None) if history.rows else []
    return f"not finite: {', '.join(names[:5])}" if names else None


def _failures(history: History) -> str | None:
    shares = last(history, ratio(metric("ledger/failed"), metric("ledger/generated")), 2)
    if shares is None or min(shares) <= FAILED:
        return None
    row = history.rows[-1]
    kinds = {name.removeprefix("failed/"): row[name] for name in row if name.startswith("failed/")}
    told = ", ".join(f"{kind} {count:.0f}" for kind, count in kinds.items() if count)
    return f"{percents(shares)} of the trajectories" + (f"; now {told}" if told else "")


STUCK_ALARMS: Final[Mapping[str, Sounds]] = {
    "stall": _stall,
    "no_signal": _no_signal,
    "paused": _paused,
    "nonfinite": _nonfinite,
    "failures": _failures,
}
