"""Every policy by its name. All follow scheduling.observation.Policy and decide from the same view."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rocstar.engine.scheduling.observation import Policy
from rocstar.engine.scheduling.policies.aimd import Aimd
from rocstar.engine.scheduling.policies.least_inflight import LeastInflight
from rocstar.engine.scheduling.policies.predictive import Predictive
from rocstar.engine.scheduling.policies.reserve import Reserve
from rocstar.engine.scheduling.policies.round_robin import RoundRobin
from rocstar.engine.scheduling.policies.static import Static
from rocstar.engine.scheduling.policies.sticky import Sticky
from rocstar.engine.scheduling.policies.thunder import Thunder

POLICIES: Mapping[str, Callable[..., Policy]] = {
    "predictive": Predictive,
    "static": Static,
    "round_robin": RoundRobin,
    "least_inflight": LeastInflight,
    "sticky": Sticky,
    "reserve": Reserve,
    "aimd": Aimd,
    "thunder": Thunder,
}


def make_policy(name: str, **tunables: Any) -> Policy:
    """A fresh policy with its tunables; ValueError for a name or a tunable that is none."""
    if name not in POLICIES:
        raise ValueError(f"no policy is called {name!r}; there are {', '.join(POLICIES)}")
    try:
        return POLICIES[name](**tunables)
    except TypeError as error:
        raise ValueError(f"policy {name!r}: {error}") from error
