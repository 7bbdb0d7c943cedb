"""All alarms, liveness first: tuning advice is for a run that moves.

alarms.toml (what each says) + the functions by name (when it sounds) ──> ALARMS
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

from rocstar.train.reading.diagnosis.alarm import KINDS, Alarm
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
