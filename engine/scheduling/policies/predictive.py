"""Ours: admit and place by the predicted peak of each replica's KV.

    TurnReady ─ KV at home ──> granted there at once: its growth was counted when it was admitted
              └ no KV ───────> queue: those that had KV and lost it, then groups in the order of submission
    room (Left, Drop, Down, Up, forecasts that shrink) ──> head of the queue ──> the replica whose predicted
              peak stays lowest, if it stays below the pool by `safety` standard deviations

The forecast is the distribution of the replica's resident tokens at each coming step (occupancy.py) from
lengths by stage and turn (predictor.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from rocstar.engine.scheduling.events import (
    Command,
    Event,
    Grant,
    Left,
    ReplicaDown,
    ReplicaUp,
    Submitted,
    TurnEnded,
    TurnReady,
)
from rocstar.engine.scheduling.observation import Observation, Phase, TrajectoryView
from rocstar.engine.scheduling.occupancy import Occupancy
from rocstar.engine.scheduling.predictor import NUM_BINS, Floats, LengthPredictor


@dataclass(slots=True)
class _Forecast:
    mean_K: Floats
    variance_K: Floats


@dataclass(slots=True)
class Predictive:
    """Tunables: `safety`, standard deviations between the predicted peak and the pool."""

    safety: float = 2.0
    name: str = field(default="predictive", init=False)
    _lengths: LengthPredictor = field(default_factory=LengthPredictor, init=False, repr=False)
    _occupancy: dict[int, Occupancy] = field(default_factory=dict, init=False, repr=False)
    _forecasts: dict[int, _Forecast] = field(default_factory=dict, init=False, repr=False)
    """Of the replicas where nothing has changed since."""
    _lost: dict[str, None] = field(default_factory=dict, init=False, repr=False)
    _new: dict[str, None] = field(default_factory=dict, init=False, repr=False)

    def decide(self, event: Event, subject: TrajectoryView | None, now: Observation) -> Iterator[Command]:
        match event:
            case TurnReady() if subject is not None and subject.phase is Phase.ready:
                yield from self._ready(subject, now)
            case TurnEnded() if subject is not None and subject.home is not None:
                self._lengths.advance(subject.traj, _length(subject))
                self._occupancy[subject.home].turn_ended(subject.traj, event.new_tokens)
                self._settle(subject, running=False)
            case Left() if subject is not None:
                self._leave(subject, finished=event.finished)
                yield from self._admit(now)
            case Submitted() if subject is not None and subject.traj in now.trajectories:
                self._lengths.add(subject.traj, subject.stage, subject.max_tokens)
            case ReplicaUp():
                self._occupancy[event.replica] = Occupancy()
                yield from self._admit(now)
            case ReplicaDown():
                del self._occupancy[event.replica]
                self._forecasts.pop(event.replica, None)
                for traj in [traj for traj, turn in now.ready.items() if turn.home is None and turn.turns]:
                    if self._new.pop(traj, 0) is None:
                        self._lost[traj] = None
                yield from self._admit(now)
            case _:
                pass

    def _ready(self, turn: TrajectoryView, now: Observation) -> Iterator[Command]:
        self._lengths.turn_starts(turn.traj, turn.turns, _length(turn))
        if turn.home is not None:
            self._settle(turn, running=True)
            yield Grant(traj=turn.traj, replica=turn.home)
            return
        (self._lost if turn.turns else self._new)[turn.traj] = None
        if len(self._lost) + len(self._new) == 1 or (turn.turns and len(self._lost) == 1):
            yield from self._admit(now)

    def _settle(self, subject: TrajectoryView, *, running: bool) -> None:
        """Write down where it stands, at its home."""
        assert subject.home is not None
        length = _length(subject)
        self._occupancy[subject.home].put(
            subject.traj,
            curve=self._lengths.turn_starts(subject.traj, subject.turns, length),
            length=length,
            context=subject.context_tokens,
            running=running,
        )
        self._forecasts.pop(subject.home, None)

    def _leave(self, subject: TrajectoryView, *, finished: bool) -> None:
        self._lost.pop(subject.traj, None)
        self._new.pop(subject.traj, None)
        self._lengths.leave(subject.traj, finished=finished)
        if subject.home in self._occupancy:
            assert subject.home is not None
            self._occupancy[subject.home].discard(subject.traj)
            self._forecasts.pop(subject.home, None)

    def _admit(self, now: Observation) -> Iterator[Command]:
        for queue in (self._lost, self._new):
            while queue:
                traj = next(iter(queue))
                turn = now.ready.get(traj)
                if turn is None:
                    del queue[traj]
                    continue
                best = self._best(turn, now)
                if best is None:
                    return
                del queue[traj]
                yield Grant(traj=traj, replica=best)
                self._settle_new(turn, best)

    def _settle_new(self, turn: TrajectoryView, replica: int) -> None:
        """As `_settle`, and its own forecast is added to the replica's, which stays valid."""
        forecast = self._forecasts.pop(replica)
        mean_K, variance_K = self._own_forecast(turn)
        forecast.mean_K += mean_K
        forecast.variance_K += variance_K
        self._settle(turn, running=True)
        self._forecasts[replica] = forecast

    def _own_forecast(self, turn: TrajectoryView) -> tuple[Floats, Floats]:
        length = _length(turn)
        curve = self._lengths.turn_starts(turn.traj, turn.turns, length)
        width = self._lengths.bin_tokens
        p = self._lengths.going_on_CBK()[curve, min(length // width, NUM_BINS - 1)]
        size = turn.context_tokens + np.arange(NUM_BINS, dtype=np.float64) * width
        return p * size, p * (1.0 - p) * size * size

    def _best(self, turn: TrajectoryView, now: Observation) -> int | None:
        """The replica whose predicted peak, with this turn, is the smallest share of its pool below 1."""
        mean_K, variance_K = self._own_forecast(turn)
        best, lowest = None, 1.0
        for replica in now.replicas.values():
            forecast = self._forecast(replica.replica)
            peak = np.max(forecast.mean_K + mean_K + self.safety * np.sqrt(forecast.variance_K + variance_K))
            share = float(peak) / replica.kv_tokens
            if share < lowest:
                best, lowest = replica.replica, share
        return best

    def _forecast(self, replica: int) -> _Forecast:
        found = self._forecasts.get(replica)
        if found is None:
            mean_K, variance_K = self._occupancy[replica].forecast_K(
                self._lengths.going_on_CBK(), self._lengths.bin_tokens
            )
            found = self._forecasts[replica] = _Forecast(mean_K, variance_K)
        return found


def _length(subject: TrajectoryView) -> int:
    return subject.context_tokens - subject.prompt_tokens
