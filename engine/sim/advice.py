"""Settings for the user's own work, found by simulating it: policy, batch limit, admission, KV budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rocstar.engine.scheduling.policies import POLICIES, PolicyFactory
from rocstar.engine.sim.bound import lower_bound
from rocstar.engine.sim.cost import Cluster, ReplicaModel
from rocstar.engine.sim.simulate import Outcome, simulate
from rocstar.engine.sim.workload import Workload

BATCHES = (64, 128, 256, 512)
CONSERVATIVENESS = (0.3, 1.0)
POOLS = (0.5, 2.0)
WORTH = 0.02
"""A setting must gain this share of the makespan to be recommended over a smaller or plainer one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Recommended settings, and the effect of other KV budgets: (tokens per replica, makespan)."""

    policy: str
    max_running: int
    conservativeness: float
    makespan_s: float
    pools: tuple[tuple[int, float], ...]

    def lines(self, cluster: Cluster) -> list[str]:
        kv = cluster.model.kv_tokens
        out = [
            f"Recommended: policy {self.policy}, max_running {self.max_running}, "
            f"schedule conservativeness {self.conservativeness:g}: {self.makespan_s:,.1f} s."
        ]
        for tokens, seconds in self.pools:
            change = seconds / self.makespan_s - 1
            verdict = "makes no difference" if abs(change) < 0.005 else f"{change:+.1%}"
            out.append(f"KV budget {tokens:,} tokens per replica instead of {kv:,}: {verdict}.")
        return out

    def to_json(self) -> dict[str, Any]:
        pools = [{"kv_tokens": tokens, "makespan_s": seconds} for tokens, seconds in self.pools]
        return {**asdict(self), "pools": pools}


def advise(
    workload: Workload,
    cluster: Cluster,
    outcomes: Sequence[Outcome],
    history: Workload | None = None,
    on_run: Callable[[str], None] = lambda text: None,
    policies: Mapping[str, PolicyFactory] = POLICIES,
) -> Advice:
    """Start from the best of `outcomes`, then vary one setting after the other; the plainer one wins ties."""
    best = min(outcomes, key=lambda o: o.makespan_s)
    bound = lower_bound(workload, cluster)

    def measure(model: ReplicaModel) -> float:
        changed = replace(cluster, model=model)
        on_run(f"{best.policy}: {changed.model.max_running} running, {changed.model.kv_tokens:,} KV tokens")
        found, _ = simulate(workload, changed, best.policy, history=history, bound=bound, policies=policies)
        return found.makespan_s

    model, seconds = cluster.model, best.makespan_s
    settings: dict[str, Sequence[Any]] = {"max_running": BATCHES, "conservativeness": CONSERVATIVENESS}
    for name, values in settings.items():
        for value in values:
            if value != getattr(model, name):
                trial = replace(model, **{name: value})
                if (found := measure(trial)) < seconds * (1 - WORTH):
                    model, seconds = trial, found
    pools = []
    for scale in POOLS:
        tokens = int(model.kv_tokens * scale)
        if tokens >= workload.limit_tokens:
            pools.append((tokens, measure(replace(model, kv_tokens=tokens))))
    return Advice(
        policy=best.policy,
        max_running=model.max_running,
        conservativeness=model.conservativeness,
        makespan_s=seconds,
        pools=tuple(pools),
    )
