"""All alarms, liveness first: tuning advice is for a run that moves. The active ones, step by step.

alarms.toml (what each says) + the functions by name (when it sounds) ──> ALARMS ──> Ringing
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocstar.train.reading.diagnosis.alarm import KINDS, Alarm, History
from rocstar.train.reading.diagnosis.learning_alarms import LEARNING_ALARMS
from rocstar.train.reading.diagnosis.rollout_alarms import ROLLOUT_ALARMS
from rocstar.train.reading.diagnosis.stuck_alarms import STUCK_ALARMS

SOUNDS: Final = {**STUCK_ALARMS, **ROLLOUT_ALARMS, **LEARNING_ALARMS}


def _alarms() -> tuple[Alarm, ...]:
    """KeyError or TypeError for an entry of the file without a function, or of another shape."""
    told = tomllib.loads(Path(__file__).with_name("alarms.toml").read_text(encoding="utf-8"))
    found = [
        Alarm(name=name, sounds=SOUNDS[name], **{**about, "needs": tuple(about["needs"])})
        for name, about in told.items()
    ]
    return tuple(sorted(found, key=lambda alarm: KINDS.index(alarm.kind)))


ALARMS: Final = _alarms()
BY_NAME: Final = {alarm.name: alarm for alarm in ALARMS}

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
    """The episodes of a run.

    Invariant: an alarm has at most one active episode, and a new one begins only after QUIET silent
    steps.
    """

    def __init__(self, alarms: Sequence[Alarm] = ALARMS) -> None:
        self.episodes: list[Episode] = []
        """All, in the order of their beginnings."""
        self._alarms = alarms
        self._open: dict[str, Episode] = {}

    @property
    def standing(self) -> list[Episode]:
        """Those that are not over, liveness first."""
        return [self._open[alarm.name] for alarm in self._alarms if alarm.name in self._open]

    def hear(self, history: History, step: int) -> list[Episode]:
        """The episodes that begin at this step."""
        begun = []
        for alarm in self._alarms:
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
