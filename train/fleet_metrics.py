"""What a step's row says of a fleet. Names: train/metrics.py."""

from __future__ import annotations

import dataclasses

from rocstar.engine.fleet import Fleet


class FleetMeter:
    """Counts since the call before; the first counts from the beginning."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._before = dataclasses.replace(fleet.counts)

    def __call__(self) -> dict[str, float]:
        now, before = dataclasses.replace(self._fleet.counts), self._before
        self._before = now
        counts = {
            f"engine/{field.name}": float(getattr(now, field.name) - getattr(before, field.name))
            for field in dataclasses.fields(now)
        }
        peaks = {f"engine/kv_peak/{k}": peak for k, peak in enumerate(self._fleet.take_kv_peaks())}
        return counts | {"engine/replicas_up": float(self._fleet.num_up)} | peaks
