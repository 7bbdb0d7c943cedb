"""The rollout engine: one asyncio program that turns tasks into trajectories.

On import it makes the threads of OpenMP wait for each other asleep: by default they spin for milliseconds at
the end of every torch operation, which takes time from other threads where another program holds a core.
OpenMP reads its settings when torch loads it; child processes inherit them.
"""

import os
from collections.abc import MutableMapping

OURS = {"OMP_WAIT_POLICY": "PASSIVE"}
SAME_MATTER = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
"""Explicit settings of the user: with one of them set, ours is not applied."""


def wait_asleep(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what OpenMP reads, unless the user has."""
    if not any(name in environment for name in SAME_MATTER):
        environment.update(OURS)


wait_asleep()
