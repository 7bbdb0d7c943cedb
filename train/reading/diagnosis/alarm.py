"""An alarm: its one definition, over a run's rows so far. Pure; nothing here reads a file.

An alarm reports an observation, not its cause: read the trajectories that show it before you change anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Kind = Literal["liveness", "health", "advice"]
KINDS: Final[tuple[Kind, ...]] = ("liveness", "health", "advice")
"""In the order of output: progress of the run, health of the training, advice on settings."""

Row = Mapping[str, Any]
"""A row of metrics.jsonl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutChange:
    """Two evaluations of a run on the same questions, the later minus the earlier."""

    before: int
    """Step of the earlier."""
    after: int
    difference: float
    interval: tuple[float, float]
    """At 95%, paired by question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A run up to a step."""

    rows: Sequence[Row]
    """Rows of RL steps, oldest first; the last is the present step."""
    held_out: HeldOutChange | None = None
    """The change of the last evaluation against the first one with the same questions."""


Sounds = Callable[[History], str | None]
"""Returns the observation with its figures if the alarm is active at the last row, else None. Total: a
missing or null metric gives None."""

Witness = Literal[
    "truncated", "failed", "tool_errors", "undecodable", "answers", "calls", "length", "loops", "timeouts"
]
"""The property of a trajectory that shows an alarm; see `witnesses`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One signature."""

    name: str
    kind: Kind
    says: str
    """The meaning of the alarm, in one sentence."""
    definition: str
    """When it sounds, in the names of metrics.jsonl."""
    source: str
    """Where the definition comes from."""
    todo: str
    """Checks and changes to make."""
    needs: tuple[str, ...]
    """Metrics without which nothing can be said."""
    sounds: Sounds
    witness: Witness | None = None
    """Which trajectories show it; None where none does."""
