"""A lower bound on the makespan T of a workload on R replicas, whatever the policy, migrations included.

Claim: T >= max(longest trajectory alone, total work at the best feasible batch).

Alone. A trajectory's turns and tools follow each other. No decode step is shorter than that of a batch of one
(b, c >= 0); no turn's prefill is shorter than that of its uncached tokens, in the fewest forwards; a sibling
that shares a prompt waits for it. A sum of these is `alone_s`.

Total work. Call the k-th decoded token of trajectory i an item: on a context of x tokens it costs
w_ik = b + c * x seconds of its forward, and its replica must hold h_ik = x + 1 - p + p / G tokens for it: of
the prompt's p it can share all with at most its G siblings. A forward S takes a + sum w over its items, and
sum h <= P, the pool. So for any price 0 <= z <= a / P per token held, with a' = a - z * P, w' = w + z * h:

    (1)  duration(S) >= a' + sum of w' over S.

Each item lies in one forward, the forwards' durations sum to at most R * T less all prefills (`prefill_s`),
and those that trajectory i takes part in, which follow each other, to at most T_i = T less its own tools and
prefills. For any prices u_i >= 0 on the latter, sum (1 + sum of u over S) * duration(S) over all forwards:

    (2)  R * T - prefill_s + sum u_i T_i >= sum over forwards of (a' + sum w') (1 + sum u)
                                         >= sum over items of (sqrt(w') + sqrt(a' u))^2,

the last step because (a' + W)(1 + U) - sum (sqrt(w') + sqrt(a' u))^2 = a' - 2 sqrt(a') q + W U with
q = sum sqrt(w' u) <= sqrt(W U) by Cauchy and Schwarz, so it is at least (sqrt(a') - q)^2 >= 0. Let trajectory
i decode n_i tokens, W_i = sum of its w', s_i = sum of its sqrt(w'). The best u_i in (2) is a' s_i^2 /
(T_i - a' n_i)^2, and (2) becomes

    (3)  R * T >= prefill_s + sum_i ( W_i + a' s_i^2 / (T_i - a' n_i) ).

The right side falls with T, so the least T that satisfies (3) is a bound. `work_s` is the best of three. At z
= a / P it is the total work at the batch that fills the pool; a batch of at most `max_running` is a pool of
that many tokens with h = 1; and at z = 0 it states that no policy can batch a trajectory of n tokens so
widely that n forwards take longer than T. (In between it was never better.) Retraction, eviction and
migration only add tokens to compute, and idle KV only takes room; prefills that ride on decode steps
(`mixed`) add their tokens' cost to a forward and save its fixed part, so there prefill_s counts the tokens
alone. QED
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rocstar.engine.sim.cost import Cluster, ReplicaModel, pairs
from rocstar.engine.sim.workload import TrajectoryWork, Workload

Array = NDArray[np.floating]


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerBound:
    alone_s: float
    work_s: float

    @property
    def seconds(self) -> float:
        return max(self.alone_s, self.work_s)


def lower_bound(workload: Workload, cluster: Cluster) -> LowerBound:
    """See the module's claim."""
    items = _Items(workload, cluster.model)
    in_time = items.solve(cluster.replicas, 0.0, by_batch=False)
    by_pool = items.solve(cluster.replicas, 1.0, by_batch=False)
    by_batch = items.solve(cluster.replicas, 1.0, by_batch=True)
    return LowerBound(
        alone_s=max(alone_s(t, cluster.model) for t in workload.trajectories), work_s=max(in_time, by_pool, by_batch)
    )


def alone_s(work: TrajectoryWork, model: ReplicaModel) -> float:
    """How long one trajectory takes on an idle replica that keeps its KV."""
    cost, seconds, cached = model.cost, 0.0, 0
    for context, turn in work.contexts():
        seconds += _prefill_s(model, cached, context)
        seconds += cost.decode_s(turn.new_tokens - 1, 1, context) + turn.tool_s
        cached = context + turn.new_tokens - 1
    return seconds


def _prefill_s(model: ReplicaModel, cached: int, context: int) -> float:
    new = context - cached
    forwards = -(-new // model.chunk_tokens)
    return model.cost.prefill_s(new, pairs(cached, new)) + (forwards - 1) * model.cost.forward_s


class _Items:
    """The workload in the letters of the module's proof, as arrays over turns and trajectories."""

    def __init__(self, workload: Workload, model: ReplicaModel) -> None:
        self.model, cost = model, model.cost
        siblings = Counter(t.group for t in workload.trajectories)
        rows: list[tuple[int, int, int, float]] = []
        own: list[float] = []
        new_tokens, attended = 0, 0.0
        prompts: set[str] = set()
        for i, work in enumerate(workload.trajectories):
            p = work.prompt_tokens
            shared = p - p / siblings[work.group] if model.share_prompts else 0.0
            fresh = p if work.group not in prompts or not model.share_prompts else 1
            prompts.add(work.group)
            cached, first, busy = p - fresh, True, 0.0
            for context, turn in work.contexts():
                rows.append((i, context, turn.new_tokens - 1, shared))
                new_tokens += context - cached
                attended += pairs(cached, context - cached)
                busy += _prefill_s(model, 0 if first else cached, context) + turn.tool_s
                cached, first = context + turn.new_tokens - 1, False
            own.append(busy)
        table = np.array(rows, dtype=np.float64)
        self.turn_of = table[:, 0].astype(np.int64)
        self.context, self.steps, self.shared = table[:, 1], table[:, 2], table[:, 3]
        self.own_s = np.array(own)
        self.n = np.bincount(self.turn_of, self.steps)
        forwards = 0.0 if cost.mixed else new_tokens / model.chunk_tokens
        self.prefill_s = cost.forward_s * forwards + cost.prefill_token_s * new_tokens + cost.prefill_pair_s * attended

    def solve(self, replicas: int, share: float, *, by_batch: bool) -> float:
        """The least T of (3) at z = share * a / P, or with a pool of `max_running` items."""
        cost = self.model.cost
        token = 1.0 / cost.tokens_per_step(1)  # no batch gets more tokens from a forward than a batch of one
        a = token * cost.forward_s * (1.0 - share)
        pool = self.model.max_running if by_batch else self.model.kv_tokens
        z = token * cost.forward_s * share / pool
        held = np.ones_like(self.context) if by_batch else self.context + 1.0 - self.shared
        first = token * (cost.request_s + cost.context_token_s * self.context) + z * held
        slope = token * cost.context_token_s + (0.0 if by_batch else z)
        work = self.steps * first + slope * self.steps * (self.steps - 1.0) / 2
        total = self.prefill_s + float(work.sum())
        roots = np.bincount(self.turn_of, _sum_of_roots(first, slope, self.steps))
        squares = a * roots * roots
        low = max(total / replicas, float(np.max(self.own_s + a * self.n)))
        high = 2 * low + 1.0
        while replicas * high < total + float(self._extra(squares, a, high)):
            high *= 2
        for _ in range(60):
            middle = (low + high) / 2
            if replicas * middle < total + float(self._extra(squares, a, middle)):
                low = middle
            else:
                high = middle
        return low

    def _extra(self, squares: Array, a: float, seconds: float) -> float:
        left = seconds - self.own_s - a * self.n
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.where(squares > 0, squares / left, 0.0).sum())


def _sum_of_roots(first: Array, slope: float, steps: Array) -> Array:
    """The sum of sqrt(first + slope * j) over j < steps, from below: a concave function is at least its
    mean over the unit interval around it, and the integral of a root is (u^1.5 - v^1.5) / 1.5 slope."""
    low = np.maximum(first - slope / 2, 0.0)
    high = low + slope * steps
    roots = np.sqrt(high) + np.sqrt(low)
    sums: Array = steps * (high + np.sqrt(high * low) + low) / np.where(roots > 0, roots, 1.0) / 1.5
    return sums
