"""The policies that a recipe may choose, by name: ours, the report's, and two more to hold it against.

All follow schedule_state.SchedulingPolicy and decide from the same view. Further peers that ours is measured
against lie in the repository's benchmarks/scheduling/.
"""

from collections.abc import Callable, Mapping
from typing import Any

from rocstar.engine.scheduling.policies.predictive import Predictive
from rocstar.engine.scheduling.policies.routed import RoundRobin, Static
from rocstar.engine.scheduling.policies.thunder import Thunder
from rocstar.engine.scheduling.schedule_state import SchedulingPolicy

PolicyFactory = Callable[..., SchedulingPolicy]
"""Makes a fresh policy of its tunables."""

POLICIES: Mapping[str, PolicyFactory] = {
    "predictive": Predictive,
    "static": Static,
    "round_robin": RoundRobin,
    "thunder": Thunder,
}


def make_policy(name: str, /, policies: Mapping[str, PolicyFactory] = POLICIES, **tunables: Any) -> SchedulingPolicy:
    """A fresh policy with its tunables.

    Args:
        name: one of `policies`.
        policies: what there is to choose from.
        tunables: the policy's own, by name.

    Raises:
        ValueError: a name or a tunable is none.
    """
    if name not in policies:
        raise ValueError(f"no policy is called {name!r}; there are {', '.join(policies)}")
    try:
        return policies[name](**tunables)
    except TypeError as error:
        raise ValueError(f"policy {name!r}: {error}") from error
