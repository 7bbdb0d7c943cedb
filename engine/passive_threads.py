"""How the threads of one torch operation wait for each other: asleep, not spinning.

OpenMP's threads spin for milliseconds at the end of every operation, in the hope that the next one begins at
once. On a machine where another program holds a core, the spinning ones take the time that the thread they
wait for would need. Asleep, a wait costs a system call. OpenMP reads its settings when torch loads it, so
this is done where a package of ours is imported first; children inherit it.
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
