"""Schedules that know every length beforehand: what a policy's distance from the lower bound is made of.

No policy may do this; they are measures. `by_length` places trajectories of like length together, so that a
replica runs only as many forwards as its own need, and grants all at once: good where KV does not bind.
`known_lengths` is our policy with a predictor that tells the truth, each trajectory ranked by its own length:
good where KV binds. The best known schedule of a workload is the faster of the two.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rocstar.engine.fleet.scheduler import Scheduler
from rocstar.engine.scheduling.events import Command, Event, Grant, TurnReady
from rocstar.engine.scheduling.policies.predictive import Predictive
from rocstar.engine.scheduling.predictor import (
    NUM_BINS,
    NUM_LEVELS,
    Floats,
    Ints,
    LengthPredictor,
    with_variance,
)
from rocstar.engine.scheduling.waiting import WaitingQueue
from rocstar.engine.sim.cost import Cluster, CostModel
from rocstar.engine.sim.flight import Flight
from rocstar.engine.sim.work import Workload

FORWARDS_PER_TURN = 0.7
"""Forwards that a turn's own prefill costs its replica: some turns begin together."""


class ByLength:
    """Trajectories by length, the longest first, each replica filled with as much work as it can do by the
    same time, beside the forwards that its longest one needs."""

    def __init__(self, workload: Workload, cluster: Cluster) -> None:
        low, high = 0.0, 1e6
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if place(workload, cluster, middle) is None else (low, middle)
        placed = place(workload, cluster, high)
        assert placed is not None
        self.homes = placed

    def handle(self, event: Event) -> list[Command]:
        if isinstance(event, TurnReady):
            return [Grant(traj=event.traj, replica=self.homes[event.traj])]
        return []


def place(workload: Workload, cluster: Cluster, end_s: float) -> dict[str, int] | None:
    """The replica of each trajectory if all can end by `end_s`, by the plan's arithmetic."""
    cost = cluster.model.cost
    homes: dict[str, int] = {}
    replica, room = -1, 0.0
    for t in sorted(workload.trajectories, key=lambda t: -t.generated_tokens):
        work = sum(
            (FORWARDS_PER_TURN * cost.forward_s + cost.prefill_token_s * (turn.tool_tokens + 1))
            + turn.new_tokens * (cost.request_s + cost.context_token_s * (x + turn.new_tokens / 2))
            for x, turn in t.contexts()
        )
        if work > room:
            replica += 1
            waits = sum(turn.tool_s for turn in t.turns)
            room = end_s - waits - cost.forward_s * t.generated_tokens
            if replica == cluster.replicas or work > room:
                return None
        room -= work
        homes[t.traj] = replica
    return homes


class KnownLengths(LengthPredictor):
    """One curve per length bin: a trajectory on curve b goes on to bin b for sure, and no further."""

    def __init__(self, lengths: Mapping[str, int]) -> None:
        super().__init__()
        self.known = lengths
        self.bin_tokens = max(1, -(-max(lengths.values()) // (NUM_BINS - 1)))

    @property
    def num_curves(self) -> int:
        return NUM_BINS

    def add(self, traj: str, group: str, stage: str, max_tokens: int) -> None:
        """Nothing to learn."""

    def advance(self, traj: str, length: int) -> None:
        """Nothing to learn."""

    def leave(self, traj: str, length: int, *, finished: bool) -> None:
        """Nothing to learn."""

    def turn_starts(self, traj: str, turns: int, length: int) -> int:
        return self.known[traj] // self.bin_tokens

    def cell(self, traj: str, turns: int, length: int) -> int:
        at = min(length // self.bin_tokens, NUM_BINS - 1)
        return self.turn_starts(traj, turns, length) * NUM_BINS + at

    def group_length(self, group: str, stage: str) -> float:
        """Of one trajectory: it ranks by itself."""
        return float(self.known[group])

    def level(self, expected: float, stage: str) -> int:
        return min(NUM_LEVELS, int(expected / self.bin_tokens * NUM_LEVELS / NUM_BINS))

    def work(self, cell: int) -> float:
        curve, at = divmod(cell, NUM_BINS)
        return float(sum(range(at, max(curve, at) + 1))) * self.bin_tokens**2

    def mean_work(self, stage: str) -> float:
        return self.work(int(np.mean(list(self.known.values()))) // self.bin_tokens * NUM_BINS)

    def peak_tokens(self, stage: str, prompt_tokens: int) -> float:
        """Nothing to gather: each trajectory is ranked by itself."""
        return 0.0

    def steady_K(self, stage: str) -> Floats:
        return np.ones(NUM_BINS)

    def going_on_K(self, cell: int) -> Floats:
        return np.asarray(self.chances_NK(np.array([cell]))[0, :NUM_BINS])

    def chances_NK(self, cells_N: Ints) -> Floats:
        left_N = np.maximum(cells_N // NUM_BINS - cells_N % NUM_BINS, 0)
        return with_variance(np.asarray(np.arange(NUM_BINS) <= left_N[:, None], dtype=np.float64))


def known_lengths(workload: Workload, cost: CostModel) -> Predictive:
    """Our policy with the truth for a predictor."""
    lengths = KnownLengths({t.traj: t.response_tokens for t in workload.trajectories})
    policy = Predictive(safety=0.0, stagger=0.0, block=1, **cost.in_context_tokens())
    policy._lengths = lengths
    policy._queue = WaitingQueue(lengths, by_group=False)
    return policy


def best_known_s(workload: Workload, cluster: Cluster) -> float:
    """The makespan of the best schedule that we know how to make from all lengths."""
    plan = Flight(
        workload=workload, cluster=cluster, scheduler=ByLength(workload, cluster), load_period_s=0.0
    )
    knowing = known_lengths(workload, cluster.model.cost)
    policy = Flight(workload=workload, cluster=cluster, scheduler=Scheduler(knowing))
    return min(plan.run().makespan_s, policy.run().makespan_s)
