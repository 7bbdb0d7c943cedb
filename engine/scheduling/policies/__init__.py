"""Every policy by its name. All follow scheduling.observation.Policy and decide from the same view."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rocstar.engine.scheduling.observation import Policy
from rocstar.engine.scheduling.policies.least_inflight import LeastInflight
from rocstar.engine.scheduling.policies.round_robin import RoundRobin

POLICIES: Mapping[str, Callable[..., Policy]] = {
    "round_robin": RoundRobin,
    "least_inflight": LeastInflight,
}


def make_policy(name: str, **tunables: Any) -> Policy:
    """A fresh policy with its tunables; ValueError for a name that is none."""
    if name not in POLICIES:
        raise ValueError(f"no policy is called {name!r}; there are {', '.join(POLICIES)}")
    return POLICIES[name](**tunables)
