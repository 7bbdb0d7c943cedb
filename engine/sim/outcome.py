"""The result of a simulated run: a row of the table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rocstar.engine.sim.bound import LowerBound
from rocstar.engine.sim.flight import Flight


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Shares are of 1. `tail_s` = from the moment 90% of the trajectories were done to the end."""

    policy: str
    workload: str
    makespan_s: float
    bound_s: float
    utilisation: float
    """Replica time in which a forward ran."""
    mean_batch: float
    """Requests decoding, averaged over replicas and time."""
    kv_occupancy: float
    """KV in the pools, idle KV included, averaged over replicas and time."""
    generated_tokens: int
    recomputed_share: float
    """Tokens whose KV was computed again, per generated token."""
    preemptions: int
    evicted_tokens: int
    migrations: int
    tail_s: float
    first_group_s: float
    """When half of the groups were complete."""
    tool_wait_s: float
    """Spent in the nodes' tool queues, summed."""
    events: int
    scheduler_us: float
    """CPU microseconds in the scheduler per turn."""

    @property
    def ratio(self) -> float:
        """Makespan over the lower bound."""
        return self.makespan_s / self.bound_s

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def outcome(flight: Flight, policy: str, bound: LowerBound) -> Outcome:
    """Sum a finished flight up."""
    totals = [replica.totals for replica in flight.replicas]
    span = flight.makespan_s * len(totals)
    generated = flight.workload.generated_tokens
    done = sorted(seat.left_s or 0.0 for seat in flight.seats)
    groups: dict[str, float] = {}
    for seat in flight.seats:
        groups[seat.work.group] = max(groups.get(seat.work.group, 0.0), seat.left_s or 0.0)
    complete = sorted(groups.values())
    turns = sum(len(seat.work.turns) for seat in flight.seats)
    return Outcome(
        policy=policy,
        workload=flight.workload.name,
        makespan_s=flight.makespan_s,
        bound_s=bound.seconds,
        utilisation=sum(t.busy_s for t in totals) / span,
        mean_batch=sum(t.running_s for t in totals) / span,
        kv_occupancy=sum(t.kv_token_s for t in totals) / span / flight.cluster.model.kv_tokens,
        generated_tokens=generated,
        recomputed_share=sum(t.recomputed_tokens for t in totals) / generated,
        preemptions=sum(t.preemptions for t in totals),
        evicted_tokens=sum(replica.pool.evicted_tokens for replica in flight.replicas),
        migrations=flight.migrations,
        tail_s=done[-1] - done[int(0.9 * (len(done) - 1))],
        first_group_s=complete[(len(complete) - 1) // 2],
        tool_wait_s=flight.tool_wait_s,
        events=flight.events,
        scheduler_us=1e6 * flight.scheduler_s / turns,
    )
