"""An alarm: its one definition, over what a run has written down so far. Pure; nothing here reads a file.

An alarm says what was seen, not why: a signature of a failure is a reason to look, and reading the
trajectories that show it comes before changing anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Kind = Literal["liveness", "health", "advice"]
KINDS: Final[tuple[Kind, ...]] = ("liveness", "health", "advice")
"""In the order of telling: does the run move, does it learn what it should, what could be set better."""

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
    """Of RL steps, oldest first; the last is the step that is looked at."""
    held_out: HeldOutChange | None = None
    """What the last evaluation changed, against the first one that asked the same."""


Sounds = Callable[[History], str | None]
"""What was seen, with its figures, where the alarm sounds at the last row; else None. Total: a metric that is
missing or null is silence."""

Witness = Literal[
    "truncated", "failed", "tool_errors", "undecodable", "answers", "calls", "length", "loops", "timeouts"
]
"""What makes a trajectory one that shows an alarm; see witnesses.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One signature."""

    name: str
    kind: Kind
    says: str
    """What it means when it sounds, in one sentence."""
    definition: str
    """When it sounds, in the names of metrics.jsonl."""
    source: str
    """Where the definition comes from."""
    todo: str
    """What to look at, and what to change."""
    needs: tuple[str, ...]
    """Metrics without which nothing can be said."""
    sounds: Sounds
    witness: Witness | None = None
    """Which trajectories show it; None where none does."""
