"""All alarms, liveness first: tuning advice is for a run that moves. The active ones, step by step.

alarms.toml (what each says) + alarms.py (when it sounds) ──> ALARMS ──> Ringing
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from rocstar.train.reading.diagnosis.alarms import SOUNDS
from rocstar.train.reading.diagnosis.held_out import HeldOut
from rocstar.train.reading.diagnosis.history import HeldOutChange, History, Row, Sounds

Kind = Literal["liveness", "health", "advice"]
KINDS: Final[tuple[Kind, ...]] = ("liveness", "health", "advice")
"""In the order of output: progress of the run, health of the training, advice on settings."""

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


_ENTRIES: Final = tomllib.loads(Path(__file__).with_name("alarms.toml").read_text(encoding="utf-8"))
ALARMS: Final = tuple(
    sorted(
        (
            Alarm(name=name, sounds=SOUNDS[name], **{**entry, "needs": tuple(entry["needs"])})
            for name, entry in _ENTRIES.items()
        ),
        key=lambda alarm: KINDS.index(alarm.kind),
    )
)

QUIET: Final = 5
"""Steps of silence after which an alarm is over; one that comes back sooner is the same."""


@dataclass(slots=True, kw_only=True)
class Episode:
    """An alarm from its first step to its last."""

    alarm: Alarm
    first: int
    last: int
    seen: str
    """Evidence at the first step."""
    now: str
    """Evidence at the last."""


class Ringing:
    """The episodes of a run, from its rows in order.

    Invariant: an alarm has at most one active episode, and a new one begins only after QUIET silent
    steps.
    """

    def __init__(self, run: Path) -> None:
        self.rows: list[Row] = []
        """Of RL steps."""
        self.episodes: list[Episode] = []
        """All, in the order of their beginnings."""
        self._evaluations = HeldOut(run)
        self._change: HeldOutChange | None = None
        self._open: dict[str, Episode] = {}

    @property
    def standing(self) -> list[Episode]:
        """Those that are not over, liveness first."""
        return [self._open[alarm.name] for alarm in ALARMS if alarm.name in self._open]

    def add_row(self, row: Row) -> list[Episode]:
        """Return the episodes that begin with a row. ConfigError for a damaged evaluation."""
        step = int(row["step"])
        if row["phase"] == "rl":
            self.rows.append(row)
        else:
            # A difficulty filter has rows of the phase eval, too.
            is_evaluation = row["phase"] == "eval" and any(name.startswith("eval/") for name in row)
            if not (is_evaluation and self._evaluations.has(step)):
                return []
            self._change = self._evaluations.change(step)
        return self._look(History(rows=self.rows, held_out=self._change), step)

    def _look(self, history: History, step: int) -> list[Episode]:
        begun = []
        for alarm in ALARMS:
            seen, standing = alarm.sounds(history), self._open.get(alarm.name)
            if seen is None:
                if standing is not None and step - standing.last >= QUIET:
                    del self._open[alarm.name]
            elif standing is not None:
                standing.last, standing.now = step, seen
            else:
                begun.append(Episode(alarm=alarm, first=step, last=step, seen=seen, now=seen))
                self._open[alarm.name] = begun[-1]
        self.episodes += begun
        return begun
