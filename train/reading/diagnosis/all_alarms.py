"""All alarms, liveness first: tuning advice is for a run that moves."""

from __future__ import annotations

from typing import Final

from rocstar.train.reading.diagnosis.alarm import KINDS, Alarm
from rocstar.train.reading.diagnosis.learning_alarms import LEARNING_ALARMS
from rocstar.train.reading.diagnosis.rollout_alarms import ROLLOUT_ALARMS
from rocstar.train.reading.diagnosis.stuck_alarms import STUCK_ALARMS

ALARMS: Final[tuple[Alarm, ...]] = tuple(
    sorted((*STUCK_ALARMS, *ROLLOUT_ALARMS, *LEARNING_ALARMS), key=lambda alarm: KINDS.index(alarm.kind))
)
BY_NAME: Final = {alarm.name: alarm for alarm in ALARMS}
