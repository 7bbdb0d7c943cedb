"""Ours: admit and place by the predicted KV of each replica over the coming steps.

    TurnReady ─ KV at home ──> granted there: its growth was counted when it was admitted (or `_pause`)
              └ no KV ───────> queue: those that lost their KV, then one sibling of each group, then the group
                               that is expected to be the longest (longest first cuts the tail)
    anything that changes a replica ──> head of the queue ──> of the replicas where the predicted peak stays
                               below the pool, the one with the least work left

Prediction: lengths by stage, turn and group (predictor.py), summed to the distribution of the resident tokens
of a replica at each step ahead (occupancy.py). Between turns only, and only the young, whose KV is cheap to
compute anew, are taken from a replica that is predicted to overflow: to another one, or back to the queue.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from rocstar.engine.scheduling.events import (
    Command,
    Drop,
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
from rocstar.engine.scheduling.occupancy import Forecast, Occupancy, forecast_of_one
from rocstar.engine.scheduling.predictor import NUM_BINS, LengthPredictor

ENGINE_CLIP_TOKENS = 4096
FORECAST_AGE = 0.25
"""Length bins that a replica may advance before its forecast is made anew."""
LOOK_ABOVE = 0.5
"""Share of the pool that known contexts must hold before it is worth to look whether it overflows."""


@dataclass(slots=True)
class _Waiting:
    """Siblings of one group that have not started, in order of submission."""

    order: int
    stage: str
    trajs: dict[str, None] = field(default_factory=dict)
    started: bool = False
    expected: float = 0.0


@dataclass(slots=True)
class Predictive:
    """Tunables:
    safety         standard deviations between predicted peak and pool, for an admission
    buffer         share of a request's limit (of at most 4,096 tokens) that a replica keeps free per request
                   before it lets the next one in: SGLang's is 0.098
    stagger        0..1: how much of the room that a steady state would leave for later admissions is left
    longest_first  admit the longest group first; else groups in order of submission
    pause_share    the most tokens given up by pauses, per generated token
    pause_below    only trajectories shorter than this share of their replica's mean are paused
    """

    safety: float = 1.0
    buffer: float = 0.1
    stagger: float = 0.3
    longest_first: bool = True
    pause_share: float = 0.005
    pause_below: float = 0.5
    hold_above: float = 1.05
    keep_kv: bool = True
    name: str = field(default="predictive", init=False)
    _lengths: LengthPredictor = field(default_factory=LengthPredictor, init=False, repr=False)
    _occupancy: dict[int, Occupancy] = field(default_factory=dict, init=False, repr=False)
    _forecasts: dict[int, Forecast] = field(default_factory=dict, init=False, repr=False)
    """The last one of each replica, those admitted since added to it."""
    _freed: set[int] = field(default_factory=set, init=False, repr=False)
    """Replicas that somebody left since their forecast was made: it is no good for an admission."""
    _full: set[int] = field(default_factory=set, init=False, repr=False)
    """Replicas that had no room for the head of the queue, and where nothing much has changed since."""
    _lost: dict[str, None] = field(default_factory=dict, init=False, repr=False)
    _new: dict[str, _Waiting] = field(default_factory=dict, init=False, repr=False)
    """By group."""
    _heap: list[tuple[float, int, str]] = field(default_factory=list, init=False, repr=False)
    """(rank, order, group); an entry whose rank is not its group's any more is stale."""
    _members: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    """By group: siblings that have not left."""
    _buffer_tokens: int = field(default=0, init=False, repr=False)
    _generated: int = field(default=0, init=False, repr=False)
    _given_up: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        self._lengths.positions = lambda: [
            position for occupancy in self._occupancy.values() for position in occupancy.lengths()
        ]

    def decide(self, event: Event, subject: TrajectoryView | None, now: Observation) -> Iterator[Command]:
        match event:
            case TurnReady() if subject is not None and subject.phase is Phase.ready:
                yield from self._ready(subject, now)
            case TurnEnded() if subject is not None:
                self._generated += event.new_tokens
                self._turn_ended(subject, event.new_tokens)
            case Left() if subject is not None:
                self._leave(subject, finished=event.finished)
                yield from self._admit(now)
            case Submitted() if subject is not None and subject.traj in now.trajectories:
                self._lengths.add(subject.traj, subject.group, subject.stage, subject.max_tokens)
                self._members[subject.group] = self._members.get(subject.group, 0) + 1
                clip = min(ENGINE_CLIP_TOKENS, subject.max_tokens)
                self._buffer_tokens = max(self._buffer_tokens, int(self.buffer * clip))
            case ReplicaUp():
                self._occupancy[event.replica] = Occupancy()
                yield from self._admit(now)
            case ReplicaDown():
                del self._occupancy[event.replica]
                self._forecasts.pop(event.replica, None)
                self._freed.discard(event.replica)
                self._full.discard(event.replica)
                yield from self._admit(now)
            case _:
                pass

    # ---- what happened ----

    def _ready(self, turn: TrajectoryView, now: Observation) -> Iterator[Command]:
        if turn.home is not None:
            self._settle(turn, running=True)
            if self._pause(turn, now):
                home = turn.home
                self._given_up += turn.context_tokens
                if not self.keep_kv:
                    yield Drop(traj=turn.traj, replica=home)
                self._take_away(turn, home)
                self._lost[turn.traj] = None
            else:
                yield Grant(traj=turn.traj, replica=turn.home)
            yield from self._admit(now)
            return
        if turn.turns or turn.context_tokens > turn.prompt_tokens:
            self._lost[turn.traj] = None
        else:
            waiting = self._new.get(turn.group)
            if waiting is None:
                waiting = self._new[turn.group] = _Waiting(order=turn.order, stage=turn.stage)
            waiting.trajs[turn.traj] = None
            if len(waiting.trajs) == 1:
                self._rank(turn.group)
        yield from self._admit(now)

    def _turn_ended(self, subject: TrajectoryView, new_tokens: int) -> None:
        self._lengths.advance(subject.traj, _length(subject))
        if subject.home is not None:
            self._occupancy[subject.home].turn_ended(subject.traj, new_tokens)
            self._settle(subject, running=False)
        self._rank(subject.group)

    def _leave(self, subject: TrajectoryView, *, finished: bool) -> None:
        self._lost.pop(subject.traj, None)
        if (waiting := self._new.get(subject.group)) is not None:
            waiting.trajs.pop(subject.traj, None)
        self._lengths.leave(subject.traj, _length(subject), finished=finished)
        self._take_away(subject, subject.home)
        self._members[subject.group] -= 1
        if self._members[subject.group]:
            self._rank(subject.group)
        else:
            del self._members[subject.group]
            self._new.pop(subject.group, None)
            self._lengths.forget_group(subject.group)

    def _take_away(self, subject: TrajectoryView, home: int | None) -> None:
        if home is not None and home in self._occupancy:
            self._occupancy[home].discard(subject.traj, subject.group, prompt_tokens=subject.prompt_tokens)
            self._changed(home, freed=True)

    def _settle(self, subject: TrajectoryView, *, running: bool) -> None:
        """Write down where it stands, at its home."""
        assert subject.home is not None
        length = _length(subject)
        self._occupancy[subject.home].put(
            subject.traj,
            subject.group,
            prompt_tokens=subject.prompt_tokens,
            curve=self._lengths.turn_starts(subject.traj, subject.turns, length),
            length=length,
            running=running,
        )
        self._changed(subject.home)

    def _changed(self, replica: int, *, freed: bool = False) -> None:
        """Look at the replica again: at once where somebody left, else when its forecast has aged."""
        if freed:
            self._freed.add(replica)
            self._full.discard(replica)
        elif self._aged(replica):
            self._full.discard(replica)

    def _aged(self, replica: int) -> bool:
        found = self._forecasts.get(replica)
        if found is None:
            return True
        return self._occupancy[replica].clock - found.clock > self._lengths.bin_tokens * FORECAST_AGE

    # ---- the queue ----

    def _rank(self, group: str) -> None:
        """Put the group where it belongs now: one sibling of each first, then the longest."""
        waiting = self._new.get(group)
        if waiting is None or not waiting.trajs:
            return
        rank = float("-inf")
        if waiting.started and self.longest_first:
            rank = -self._lengths.group_length(group, waiting.stage)
        elif waiting.started:
            rank = float(waiting.order)
        waiting.expected = rank
        heapq.heappush(self._heap, (rank, waiting.order, group))

    def _head(self, now: Observation) -> TrajectoryView | None:
        """The next to be admitted. Drops from the queues what has left or runs."""
        while self._lost:
            traj = next(iter(self._lost))
            if traj in now.ready:
                return now.ready[traj]
            del self._lost[traj]
        while self._heap:
            rank, _, group = self._heap[0]
            waiting = self._new.get(group)
            if waiting is not None and waiting.expected == rank:
                for traj in list(waiting.trajs):
                    if traj in now.ready:
                        return now.ready[traj]
                    del waiting.trajs[traj]
            heapq.heappop(self._heap)
        return None

    # ---- admission and placement ----

    def _admit(self, now: Observation) -> Iterator[Command]:
        while (turn := self._head(now)) is not None:
            if len(self._full) >= len(now.replicas):
                return
            placed = self._best(turn, now)
            if placed is None:
                return
            replica, own = placed
            if self._lost.pop(turn.traj, 0) == 0:
                waiting = self._new[turn.group]
                del waiting.trajs[turn.traj]
                if not waiting.started:
                    waiting.started = True
                    self._rank(turn.group)
            yield Grant(traj=turn.traj, replica=replica)
            self._forecasts[replica].add(own)
            self._settle(turn, running=True)

    def _best(self, turn: TrajectoryView, now: Observation) -> tuple[int, Forecast] | None:
        """Of the replicas with room for this turn, the one with the least work left."""
        room_K = 1.0 - self.stagger * (1.0 - self._lengths.steady_K(turn.stage))
        open_ = [r for r in now.replicas.values() if r.replica not in self._full]
        for replica in sorted(open_, key=lambda r: (r.replica != turn.home, self._forecast(r.replica).area)):
            own = self._own_forecast(turn, replica.replica)
            if self._forecast(replica.replica).peak(self.safety, own, room_K) <= replica.kv_tokens:
                return replica.replica, own
            self._full.add(replica.replica)
        return None

    def _own_forecast(self, turn: TrajectoryView, replica: int) -> Forecast:
        length, width = _length(turn), self._lengths.bin_tokens
        curve = self._lengths.curve(turn.traj, turn.turns)
        at = min(length // width, NUM_BINS - 1)
        going_on_K = self._lengths.going_on_NK(np.array([curve]), np.array([at]))[0]
        shared = turn.group in self._occupancy[replica].groups
        extra = self._buffer_tokens + (0 if shared else turn.prompt_tokens)
        return forecast_of_one(going_on_K, width, length, extra)

    def _forecast(self, replica: int) -> Forecast:
        found = self._forecasts.get(replica)
        if found is None or replica in self._freed or self._aged(replica):
            self._freed.discard(replica)
            found = self._occupancy[replica].forecast(
                self._lengths.going_on_NK,
                self._lengths.num_curves,
                self._lengths.bin_tokens,
                self._buffer_tokens,
            )
            self._forecasts[replica] = found
        return found

    def _pause(self, turn: TrajectoryView, now: Observation) -> bool:
        """Its home is predicted to overflow, and its KV is little: it had better wait for room anywhere."""
        assert turn.home is not None
        home = now.replicas[turn.home]
        if home.resident_tokens < LOOK_ABOVE * home.kv_tokens:
            return False
        occupancy = self._occupancy[turn.home]
        if occupancy.tokens_now(self._buffer_tokens) > self.hold_above * home.kv_tokens:
            return True
        if self._given_up + turn.context_tokens > self.pause_share * self._generated:
            return False
        mean = home.resident_tokens / len(home.trajectories)
        if turn.context_tokens > self.pause_below * mean:
            return False
        return self._forecast(turn.home).peak(0.0) > home.kv_tokens


def _length(subject: TrajectoryView) -> int:
    return subject.context_tokens - subject.prompt_tokens
