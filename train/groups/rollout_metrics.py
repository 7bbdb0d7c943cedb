"""Metrics of a step's trajectories. Names: train/record/metrics.py.

`reward/mean` and `tool/*` are over all generated trajectories, before RoC (contract 11). With forks, means and shares
are by path weight: those of rollouts without forks, in expectation. Were leaves pooled, prefixes that fork (those with
an error, say) would count more than others. Numbers of calls and tokens count each once, where it was sampled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import fsum
from typing import Final

from rocstar.engine.record.signs import is_looping, is_timed_out
from rocstar.engine.rollout.rollout import ENDED_EARLY
from rocstar.engine.types import Failed, Scored, Trajectory
from rocstar.train.groups.advantages import path_weights_of
from rocstar.train.groups.selection import Selection
from rocstar.train.tasks.verify import extract_answer, num_answers


def rollout_metrics(selection: Selection) -> dict[str, float]:
    """Everything known before the update."""
    trajectories = [t for t, _ in selection.verdicts]
    weighted = list(zip(path_weights_of(trajectories), trajectories, strict=True))
    rewards = [(w, t.outcome.reward) for w, t in weighted if isinstance(t.outcome, Scored)]
    correct = [(w, t) for w, t in weighted if _is_correct(t)]
    results = [r for t in trajectories for turn in t.own_turns for r in turn.results]
    ledger = selection.ledger()
    metrics = {
        "tool/error_share": _error_share(weighted),
        "tool/calls_mean": _mean((w, len(t.results)) for w, t in weighted),
        "tool/executed_share": _mean(
            (w, any(r.status not in (*_NO_TOOL, "bad_arguments") for r in t.results)) for w, t in weighted
        ),
        "tool/session_restarts": float(sum(r.restarted for r in results)),
        "tool/session_replays": float(sum(r.replayed for r in results)),
        "seq_len/mean": _mean((w, len(t.ids)) for w, t in weighted),
        "seq_len/max": float(max((len(t.ids) for t in trajectories), default=0)),
        "is_truncated/mean": _mean((w, t.is_truncated) for w, t in weighted),
        "num_turns/mean": _mean((w, len(t.turns)) for w, t in weighted),
        "ledger/generated": float(len(trajectories)),
        "ledger/timed_out": float(selection.num_timed_out),
        "groups/used": float(selection.groups_used),
        "groups/no_signal": float(selection.groups_no_signal),
        "tokens/generated": float(sum(t.num_policy_tokens for t in trajectories)),
        "tokens/no_signal": float(sum(t.num_policy_tokens for t, v in selection.verdicts if v.bucket == "no_signal")),
    }
    buckets = ("kept", "dropped_positive", "dropped_negative", "no_signal", "failed", "ended_early")
    metrics |= {f"ledger/{bucket}": float(ledger[bucket]) for bucket in buckets}
    if rewards:
        metrics["reward/mean"] = _mean(rewards)
        metrics["reward/correct_share"] = _mean(
            (w, _is_correct(t)) for w, t in weighted if isinstance(t.outcome, Scored)
        )
    if selection.kept:
        kept = set(map(id, selection.kept))
        metrics["reward/mean_kept"] = _mean(
            (w, t.outcome.reward) for w, t in weighted if id(t) in kept and isinstance(t.outcome, Scored)
        )
    if any(t.results for _, t in correct):
        metrics["tool/error_share_in_correct"] = _error_share(correct)
    judged = [
        (w, v.penalty_error, v.penalty_format or 0.0)
        for (w, t), (_, v) in zip(weighted, selection.verdicts, strict=True)
        if v.penalty_error is not None and _is_correct(t)
    ]
    if judged:
        metrics["penalty/error_mean"] = _mean((w, error) for w, error, _ in judged)
        metrics["penalty/format_mean"] = _mean((w, form) for w, _, form in judged)
    metrics |= {f"tool/status/{s}": float(n) for s, n in Counter(r.status for r in results).items()}
    metrics |= _by_tool(trajectories)
    kinds = Counter(t.outcome.kind for t in trajectories if isinstance(t.outcome, Failed))
    kinds.pop(ENDED_EARLY, None)
    metrics |= {f"failed/{kind}": float(n) for kind, n in kinds.items()}
    for reason in dict.fromkeys(t.finish_reason for t in trajectories):
        metrics[f"finish/{reason.value}"] = _mean((w, t.finish_reason is reason) for w, t in weighted)
    return metrics | fork_metrics(weighted) | text_metrics(trajectories) | released_metrics(selection)


def fork_metrics(weighted: Sequence[tuple[float, Trajectory]]) -> dict[str, float]:
    """Return `fork/branches` and `fork/recovered`; nothing of a step without forks."""
    branches = sum(t.fork is not None for _, t in weighted)
    if not branches:
        return {}
    groups = {(t.key.step, t.task.id) for _, t in weighted}
    failing = [(w, t) for w, t in weighted if any(result.is_error for result in t.results)]
    return {"fork/branches": branches / len(groups), "fork/recovered": _mean((w, _is_correct(t)) for w, t in failing)}


def _by_tool(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Return calls and errors of each tool. Unknown names are ignored: the policy may write any."""
    turns = [turn for t in trajectories for turn in t.own_turns if turn.results]
    of_tools = [
        (call.name, result.is_error)
        for turn in turns
        for call, result in zip(turn.calls, turn.results, strict=True)
        if call.name is not None and result.status not in _NO_TOOL
    ]
    calls = Counter(name for name, _ in of_tools)
    errors = Counter(name for name, is_error in of_tools if is_error)
    return {f"tool/calls/{name}": float(n) for name, n in calls.items()} | {
        f"tool/errors/{name}": float(errors[name]) for name in calls
    }


def released_metrics(selection: Selection) -> dict[str, float]:
    """The released rStar2-Agent code's own names, so that curves can be laid over its curves."""
    rewards: dict[str, set[float]] = {}
    solved: dict[str, bool] = {}
    for trajectory, _ in selection.verdicts:
        if isinstance(trajectory.outcome, Scored):
            task = trajectory.task.id
            rewards.setdefault(task, set()).add(trajectory.outcome.reward)
            solved[task] = solved.get(task, False) or trajectory.outcome.is_correct
    equal = [solved[task] for task, values in rewards.items() if len(values) == 1]
    ones, zeros = sum(equal), len(equal) - sum(equal)
    answers = [num_answers(t) for t, _ in selection.verdicts]
    penalties = [v.penalty_error for _, v in selection.verdicts if v.penalty_error is not None]
    return {
        "reject_equal_reward/solve_equal_total_ratio": (zeros + ones) / max(1, len(rewards)),
        "reject_equal_reward/solve_equal_zeros": float(zeros),
        "reject_equal_reward/solve_equal_non_all_zeros": float(ones),
        "roc_error_ratio/global_err_ratio": _mean((1.0, penalty) for penalty in penalties),
        "roc_answer_format/answer_per_rollout_mean": _mean((1.0, n) for n in answers),
        "roc_answer_format/zero_answer_count": float(sum(n == 0 for n in answers)),
        "roc_answer_format/gt_one_answer_count": float(sum(n > 1 for n in answers)),
    }


_NO_TOOL = ("malformed_call", "unknown_tool", "too_many_calls")
"""Statuses of calls that were given to no tool."""


def _is_correct(trajectory: Trajectory) -> bool:
    return isinstance(trajectory.outcome, Scored) and trajectory.outcome.is_correct


def _mean(weighted: Iterable[tuple[float, float]]) -> float:
    """The mean of values, each with its weight before it; 0 without any."""
    pairs = list(weighted)
    return fsum(w * value for w, value in pairs) / fsum(w for w, _ in pairs) if pairs else 0.0


def _error_share(weighted: Sequence[tuple[float, Trajectory]]) -> float:
    """Failed calls as a share of all calls of whole paths; 0 without calls."""
    calls = fsum(w * len(t.results) for w, t in weighted)
    return fsum(w * sum(r.is_error for r in t.results) for w, t in weighted) / calls if calls else 0.0


SAMPLE: Final = 256
LEAST_TASKS: Final = 8


def text_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """`text/looping`, `answers/alike` (with LEAST_TASKS tasks that were answered) and `reward/timeouts`."""
    found = {"reward/timeouts": float(sum(is_timed_out(t) for t in trajectories))}
    sample = trajectories[:: max(1, len(trajectories) // SAMPLE)]
    if sample:
        found["text/looping"] = sum(map(is_looping, sample)) / len(sample)
    alike = answers_alike(sample)
    return found if alike is None else found | {"answers/alike": alike}


def answers_alike(trajectories: Sequence[Trajectory]) -> float | None:
    """The largest share of tasks whose siblings answer one thing most often, less the share whose answer it
    is.

    None with fewer than LEAST_TASKS tasks that were answered.
    """
    answers: dict[str, Counter[str]] = {}
    truths: dict[str, str] = {}
    for trajectory in trajectories:
        if isinstance(trajectory.outcome, Scored) and trajectory.turns:
            answer = extract_answer(trajectory).answer
            if answer is not None:
                answers.setdefault(trajectory.task.id, Counter())[answer] += 1
                truths[trajectory.task.id] = trajectory.task.answer.strip()
    if len(answers) < LEAST_TASKS:
        return None
    often = Counter(min(given, key=lambda one: (-given[one], one)) for given in answers.values())
    right = Counter(truths.values())
    return max(max(0, count - right[answer]) for answer, count in often.items()) / len(answers)
