"""Alarms of liveness: the run does not move, or moves without learning."""

from __future__ import annotations

from typing import Final

from rocstar.train.reading.diagnosis.alarm import Alarm, History, Row
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


STUCK_ALARMS: Final = (
    Alarm(
        name="stall",
        kind="liveness",
        says="A step took far longer than those before it.",
        definition="time/step - time/eval - time/checkpoint > 6 x its median over the 20 steps before, and "
        "10 s more",
        source="miles, advisory.py (6 x the median)",
        todo="See time/* of that step: tool_wait is the sandbox, generate the engine, learn the learner. "
        "logs/stalled.txt has stacks where nothing moved at all.",
        needs=("time/step",),
        sounds=_stall,
    ),
    Alarm(
        name="no_signal",
        kind="liveness",
        says="Nothing is learned: in no group do rewards differ.",
        definition="groups/used = 0 in 3 steps",
        source="arXiv 2508.20722, 2.1: an advantage needs unequal rewards",
        todo="All wrong: easier tasks, a longer cold start, or a template whose answers the judge reads (try "
        "`rocstar grade`). All right: harder tasks, or stages.N.filter_rollouts.",
        needs=("groups/used",),
        sounds=_no_signal,
    ),
    Alarm(
        name="paused",
        kind="liveness",
        says="The optimizer is paused: rollout and learner disagree about the same tokens.",
        definition="gate/paused > 0",
        source="off_policy.gate_kl and its neighbours (docs/reference/learner.md)",
        todo="The run wrote the tokens that disagree most beside its logs. Look for another template, "
        "another "
        "tokenizer or another precision of the engine.",
        needs=("gate/paused",),
        sounds=_paused,
    ),
    Alarm(
        name="nonfinite",
        kind="liveness",
        says="A metric is not a finite number.",
        definition="a metric of the row is null",
        source="metrics/nonfinite",
        todo="Gradient norm or loss: lower rl.lr, and look at ratio/max before it; go on from the "
        "checkpoint before.",
        needs=("time/step",),
        sounds=_nonfinite,
    ),
    Alarm(
        name="failures",
        kind="liveness",
        says="Trajectories are lost to failures of the system, not of the policy.",
        definition="ledger/failed / ledger/generated > 5% in 2 steps",
        source="miles, advisory.py (aborts above 5%)",
        todo="failed/KIND names the part; `rocstar sandbox doctor` looks at the sandbox, logs/ has the "
        "servers.",
        needs=("ledger/failed", "ledger/generated"),
        sounds=_failures,
        witness="failed",
    ),
)
