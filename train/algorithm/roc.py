"""Resample-on-Correct: roll out N siblings, keep G, prefer correct ones with clean traces.

Source: arXiv 2508.20722, section 2.2, Eq. 4 and 5. A correct answer reached through failing tool calls or
a malformed trace earns full reward under an outcome-only reward. RoC does not touch the reward: it makes
such trajectories rarer among the positives the learner sees, and keeps the negatives as they come.

Each sibling has a key, drawn from Exp(1) before its rollout: the arrival time of a clock of rate 1. A clock of
rate w arrives at key / w, and the first k arrivals are k successive draws without replacement, each with
probability ~ w (Efraimidis and Spirakis 2006, in logarithms). So the kept set is a function of keys and outcomes.

Legend: `_N` all scored siblings of one task.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rocstar.train.algorithm.advantages.sample import has_no_signal

NO_TOOL_CALL_PENALTY = 0.5  # Eq. 4, "to encourage tool usage"


class RocMode(StrEnum):
    """How the positives that stay are chosen."""

    paper = "paper"  # random draw without replacement, weight 1 / (eps + penalty)
    sort = "sort"  # the lowest penalties, ties in rollout order, as in the released code
    uniform = "uniform"  # random draw that ignores the penalty: the ablation with the same N and G
    none = "none"  # no resampling: everything given is kept, so the caller rolls out only G


class DropReason(StrEnum):
    """The bucket of the ledger in which a scored trajectory ends."""

    kept = "kept"
    dropped_positive = "dropped_positive"
    dropped_negative = "dropped_negative"
    no_signal = "no_signal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalty:
    """The two terms of the penalty, each in [0, 1].

    Invariant: 0 <= total <= 2.
    """

    error: float
    format: float

    @property
    def total(self) -> float:
        """p_total = p_err + p_format, in [0, 2]."""
        return self.error + self.format


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision on one trajectory, for the learner and for the ledger."""

    reason: DropReason
    inclusion_weight: float | None
    """Its weight in the random draw it took part in; None if no draw decided about it."""

    @property
    def kept(self) -> bool:
        """Whether the learner sees this trajectory."""
        return self.reason is DropReason.kept


def roc_penalty(*, num_tool_calls: int, num_tool_errors: int, num_answers: int, num_turns: int) -> Penalty:
    """Return the penalty of one trajectory.

    p_err    = 0.5 if there is no tool call, else errors / calls            (arXiv 2508.20722, Eq. 4)
    p_format = 1 if there is no answer, else min(1, (answers - 1) / turns)  (Eq. 5)

    Args:
        num_tool_calls: every call the policy wrote, also undecodable ones.
        num_tool_errors: calls whose result is an error by its status, not by the word "error" in its text.
        num_answers: closed `<answer>...</answer>` blocks in the text the policy wrote.
        num_turns: completions of the policy, at least 1; the last one counts too.

    Assumes that the counts are structured. The released code looks for the word "error" in the tool text
    and counts only the turns that begin inside the response; a single-turn answer costs 1.0 there and 0
    here, as in the paper.
    """
    error = num_tool_errors / num_tool_calls if num_tool_calls else NO_TOOL_CALL_PENALTY
    format_ = min(1.0, (num_answers - 1) / num_turns) if num_answers else 1.0
    return Penalty(error=error, format=format_)


def choose_siblings(
    rewards_N: Sequence[float],
    correct_N: Sequence[bool],
    penalties_N: Sequence[Penalty],
    keys_N: Sequence[float],
    *,
    keep: int,
    mode: RocMode,
    eps: float = 0.1,
    min_positive: int = 2,
    min_negative: int = 2,
) -> list[Decision]:
    """Decide for every sibling whether it is kept; one decision per input, in the same order.

    Positives are the correct ones, whatever their reward; rewards may differ where all are of one sign.
    Quotas keep the shares of positives and negatives (section 2.2), see `quotas`. Of each sign the first to
    arrive stay, ties in rollout order. Negatives arrive at their keys, in every mode; for positives see `RocMode`.
    The paper's weight 1 / p_total is undefined at p_total = 0; `eps` makes it 1 / (eps + p_total), so a clean
    trajectory is at most (eps + 2) / eps times likelier per draw.

    Invariant: equal rewards keep none (`no_signal`); else N <= keep or mode `none` keeps all; else exactly
    `keep` are kept, with both signs if there are both, and their rewards are not all equal.

    Assumes one verdict, penalty and key per reward, `eps` above 0, and `keep` of at least 2, which holds both
    signs.

    Raises:
        ValueError: a reward is not finite.
    """
    num_given = len(rewards_N)
    if not all(math.isfinite(reward) for reward in rewards_N):
        raise ValueError(f"rewards must be finite, got {list(rewards_N)}; a failed trajectory has no reward")
    if has_no_signal(rewards_N):
        return [Decision(reason=DropReason.no_signal, inclusion_weight=None)] * num_given
    if num_given <= keep or mode == RocMode.none:
        return [Decision(reason=DropReason.kept, inclusion_weight=None)] * num_given

    positives = [i for i in range(num_given) if correct_N[i]]
    negatives = [i for i in range(num_given) if not correct_N[i]]
    num_positive, num_negative = quotas(
        len(positives), len(negatives), keep=keep, min_positive=min_positive, min_negative=min_negative
    )
    arrivals = [
        _arrival(key, penalty.total, mode, eps) if is_correct else key
        for key, penalty, is_correct in zip(keys_N, penalties_N, correct_N, strict=True)
    ]
    kept = set(sorted(negatives, key=lambda i: arrivals[i])[:num_negative])
    kept.update(sorted(positives, key=lambda i: arrivals[i])[:num_positive])
    weights: dict[int, float] = dict.fromkeys(negatives, 1.0)
    if mode != RocMode.sort:
        weights.update({i: 1.0 / _arrival(1.0, penalties_N[i].total, mode, eps) for i in positives})
    if has_no_signal([rewards_N[i] for i in kept]):
        _exchange_one(kept, rewards_N, correct_N, arrivals)
    return [
        Decision(reason=_reason(i in kept, correct_N[i]), inclusion_weight=weights.get(i)) for i in range(num_given)
    ]


def _arrival(key: float, penalty: float, mode: RocMode, eps: float) -> float:
    """When a positive arrives: its key over its weight in the draw, or its penalty where they are sorted."""
    match mode:
        case RocMode.sort:
            return penalty
        case RocMode.paper:
            return key * (eps + penalty)
        case _:
            return key


def _exchange_one(
    kept: set[int], rewards_N: Sequence[float], correct_N: Sequence[bool], arrivals_N: Sequence[float]
) -> None:
    """Put the first dropped sibling of another reward in the place of the last kept one of its sign.

    Kept siblings of one reward would all have advantage 0. With rewards of 1 and 0 this never happens, for
    then both signs are kept.
    """
    common = rewards_N[next(iter(kept))]
    comes = min((i for i in range(len(rewards_N)) if rewards_N[i] != common), key=lambda i: arrivals_N[i])
    goes = max((i for i in sorted(kept) if correct_N[i] == correct_N[comes]), key=lambda i: arrivals_N[i])
    kept.remove(goes)
    kept.add(comes)


def quotas(
    num_positives: int, num_negatives: int, *, keep: int, min_positive: int, min_negative: int
) -> tuple[int, int]:
    """Return how many positives and negatives to keep: their shares, within the minimum counts.

    negatives = round(num_negatives * keep / N), positives = keep - negatives; then each side gets at least
    its minimum (never under 1), or all it has if that is less. Where both minimums do not fit in `keep`,
    the one of the positives goes first and the negatives keep at least one.

    Source: section 2.2 keeps half of each; the minimum counts are those of the released code, with equal
    results for N = 32, keep = 16 and minimums of 2 (1 positive -> 1 + 15; 2 to 5 -> 2 + 14; 6 -> 3 + 13).
    Halves round to even, as there. Unlike there, a small `keep` never keeps the whole group.

    Where all are of one sign, `keep` of that sign are kept.

    Assumes 2 <= keep < num_positives + num_negatives. A share is then never more than there is: something
    must be dropped, so the share of a side rounds to at most the side.
    """
    floor_positive = max(1, min(min_positive, keep - 1))
    floor_negative = max(1, min(min_negative, keep - floor_positive))
    share = round(num_negatives * keep / (num_positives + num_negatives))
    at_least = min(floor_negative, num_negatives)
    at_most = keep - min(floor_positive, num_positives)
    negative = min(max(share, at_least), at_most)
    return keep - negative, negative


def can_end(
    keys: Mapping[int, float],
    scored: Mapping[int, tuple[bool, float]],
    running: Collection[int],
    *,
    keep: int,
    mode: RocMode,
    eps: float = 0.1,
    min_positive: int = 2,
    min_negative: int = 2,
) -> set[int]:
    """Return the running siblings whose outcome cannot matter, where all rewards are 1 (correct) or 0.

    Whatever they and the other running ones become (correct with any penalty in [0, 2], wrong, or failed),
    `choose_siblings` keeps the same others and none of them; so it does without them.

    One of them is unneeded if its outcome never changes how many of each sign are kept, and enough of each sign
    arrive before it at its earliest. The first holds exactly if these numbers are equal for all numbers of positives
    and negatives among the running ones, since two that differ by one sibling are those with and without it. The
    second needs the scored ones alone: the others may all fail.

    Args:
        keys: of each sibling by its number.
        scored: (is correct, total penalty) of each that has a reward.
        running: those without an outcome. Siblings in neither have failed, or ended.
        keep, mode, eps, min_positive, min_negative: as of `choose_siblings`.
    """
    if mode == RocMode.none:
        return set()
    signs = [is_correct for is_correct, _ in scored.values()]

    def kept(positives: int, negatives: int) -> tuple[int, int]:
        if positives + negatives <= keep:
            return positives, negatives
        return quotas(positives, negatives, keep=keep, min_positive=min_positive, min_negative=min_negative)

    num_positive, num_negative = now = kept(signs.count(True), signs.count(False))
    for a in range(len(running) + 1):
        for b in range(len(running) + 1 - a):
            if kept(signs.count(True) + a, signs.count(False) + b) != now:
                return set()

    def arrives_too_late(sibling: int) -> bool:
        positive, negative = (_arrival(keys[sibling], 0.0, mode, eps), sibling), (keys[sibling], sibling)
        earlier = [
            (_arrival(keys[i], penalty, mode, eps), i) < positive if is_correct else (keys[i], i) < negative
            for i, (is_correct, penalty) in scored.items()
        ]
        positives = sum(is_early for is_early, is_correct in zip(earlier, signs, strict=True) if is_correct)
        return positives >= num_positive and sum(earlier) - positives >= num_negative

    return {sibling for sibling in running if arrives_too_late(sibling)}


def _reason(is_kept: bool, is_correct: bool) -> DropReason:
    if is_kept:
        return DropReason.kept
    return DropReason.dropped_positive if is_correct else DropReason.dropped_negative
