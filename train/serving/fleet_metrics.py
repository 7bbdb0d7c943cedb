"""Metrics of a fleet in a step's row. Names: train/record/metrics.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rocstar.engine.fleet.fleet import Fleet
from rocstar.train.publish.publisher import Publisher
from rocstar.train.serving.backend import Opened
from rocstar.train.serving.node_address import NodeAddress


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


def opened_fleet(fleet: Fleet, publisher: Publisher, others: Sequence[NodeAddress]) -> Opened:
    """The fleet of a training: measured, and informed of stages."""

    def begin(stage: str) -> None:
        fleet.stage = stage

    return Opened(
        engine=fleet, publisher=publisher, measure=FleetMeter(fleet), begin=begin, others=list(others)
    )
