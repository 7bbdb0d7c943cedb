"""Ours: admit and place by the predicted KV of each replica over the coming steps.

    TurnReady ─ KV at home ──> granted there: its growth was counted when it was admitted (or see below)
              └ no KV ───────> queue (waiting.py): those that lost their KV, then one sibling of each group,
                               then the group that is expected to be the longest (this cuts the tail)
    anything that changes a replica ──> head of the queue ──> of the replicas where the predicted peak stays
                               below the pool: one that gathers its siblings, else the one with the least load
              head fits nowhere ──> shorter ones go ahead of it, `backfill` token-steps per one of heads

Prediction: lengths by stage, turn and group (predictor.py), summed to the distribution of the resident tokens
of a replica at each step ahead (occupancy.py). Between turns only, a trajectory is taken from its replica: to
the queue, where its KV is little and the replica is predicted to overflow; to the replica with the least
load, where its own has much more than it should.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from rocstar.engine.scheduling import events
from rocstar.engine.scheduling.occupancy import Forecast, Occupancy, ahead
from rocstar.engine.scheduling.predictor import Floats, LengthPredictor
from rocstar.engine.scheduling.schedule_state import Phase, ReplicaEntry, ScheduleState, TrajectoryEntry
from rocstar.engine.scheduling.waiting import WaitingQueue

ENGINE_CLIP_TOKENS = 4096
FORECAST_AGE = 0.5
"""Length bins that a replica may advance before its forecast is made anew."""
LOOK_ABOVE = 0.5
"""Share of the pool that known contexts must hold before it is worth to look whether it overflows."""
GATHER_ABOVE = 1.0
"""Share of all pools that all trajectories at once may need at their peak. Blocks of siblings grow until they
need no more: a shared prompt is room gained, but siblings' lengths are alike and make replicas unequal."""
MOVE_GAIN = 2.0
"""A move must save this many times the tokens that it recomputes."""
MOVE_ABOVE = 1.5
"""How far above the mean a replica's load must be before it gives one away, in shares of what chance may
still do to it: its work over the root of its trajectories. Before that, moves would follow noise."""


@dataclass(slots=True)
class Predictive:
    """Tunables:
    safety         standard deviations between predicted peak and pool, for an admission
    buffer         share of a request's limit (of at most 4,096 tokens) that a replica keeps free per request
                   before it lets the next one in: SGLang's is 0.098
    stagger        0..1: share of the steady state's room for later admissions that is kept free
    longest_first  admit the longest group first; else groups in order of submission
    pause_share    the most tokens given up by pauses, per generated token
    pause_below    only trajectories shorter than this share of their replica's mean are paused
    hold_above     share of the pool above which trajectories that return from a tool are paused
    block          the most siblings that one replica is given in a row, so that they share their prompt's KV
                   where it would be short
    backfill       work that may go ahead of a head of the queue that fits nowhere, per work of such heads
    move_share     the most tokens computed anew by moves, per generated token (0: no moves)

    The engine's costs, in tokens of KV that are read in the same time. They are those of 14B on one MI300X
    (engine/sim/cost.py, `in_context_tokens`):
    forward_tokens   a forward, whatever is in it
    request_tokens   a request's row in a forward
    prefill_tokens   a token computed anew
    """

    safety: float = 0.5
    buffer: float = 0.1
    stagger: float = 0.0
    longest_first: bool = True
    pause_share: float = 0.005
    pause_below: float = 0.5
    hold_above: float = 1.05
    block: int = 8
    backfill: float = 0.25
    move_share: float = 0.007
    forward_tokens: float = 190_000
    request_tokens: float = 450
    prefill_tokens: float = 1000
    name: str = field(default="predictive", init=False)
    _lengths: LengthPredictor = field(default_factory=LengthPredictor, init=False, repr=False)
    _occupancy: dict[int, Occupancy] = field(default_factory=dict, init=False, repr=False)
    _forecasts: dict[int, Forecast] = field(default_factory=dict, init=False, repr=False)
    """The last one of each replica, those admitted since added to it."""
    _loads: dict[int, float] = field(default_factory=dict, init=False, repr=False)
    """The load of the last forecast, by replica that is up."""
    _sum_of_loads: float | None = field(default=None, init=False, repr=False)
    """None: one of them has changed since it was made."""
    _stale: set[int] = field(default_factory=set, init=False, repr=False)
    """Replicas whose forecast is old, or that a trajectory left since."""
    _full: dict[int, float] = field(default_factory=dict, init=False, repr=False)
    """The least work that a replica had no room for, since when nothing much has changed there."""
    _barrier: float | None = field(default=None, init=False, repr=False)
    """The work from which on no replica has room. None if it may have changed."""
    _nobody: tuple[int, int, int] | None = field(default=None, init=False, repr=False)
    """Versions of queue, lengths and ready turns at the last search without a fit, if no replica changed much
    since."""
    _queue: WaitingQueue = field(init=False, repr=False)
    _members: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    """The number of siblings that have not left, by group."""
    _living: dict[str, dict[int, int]] = field(default_factory=dict, init=False, repr=False)
    """The number of siblings that live on a replica, by group and replica."""
    _pool_tokens: int = field(default=0, init=False, repr=False)
    """The KV tokens of all replicas that are up."""
    _buffer_tokens: int = field(default=0, init=False, repr=False)
    _generated: int = field(default=0, init=False, repr=False)
    _given_up: int = field(default=0, init=False, repr=False)
    _moved: int = field(default=0, init=False, repr=False)
    _headed: float = field(default=0.0, init=False, repr=False)
    _filled: float = field(default=0.0, init=False, repr=False)
    """Work admitted from the head of the queue, and ahead of it."""

    def __post_init__(self) -> None:
        self._queue = WaitingQueue(self._lengths, self.longest_first)
        self._lengths.positions = lambda: [
            position for occupancy in self._occupancy.values() for position in occupancy.lengths()
        ]

    def decide(
        self, event: events.Event, subject: TrajectoryEntry | None, now: ScheduleState
    ) -> Iterable[events.Command]:
        match event:
            case events.TurnReady() if subject is not None and subject.phase is Phase.ready:
                return self._ready(subject, now)
            case events.TurnEnded() if subject is not None:
                assert subject.home is not None, "it ran there"
                self._generated += event.new_tokens
                self._occupancy[subject.home].turn_ended(subject.traj, event.new_tokens)
                self._settle(subject, running=False)
                self._queue.rank(subject.group)
                return ()
            case events.Left() if subject is not None:
                self._leave(subject, finished=event.finished)
            case events.Submitted() if subject is not None and subject.traj in now.trajectories:
                self._lengths.add(subject.traj, subject.group, subject.stage, subject.max_tokens)
                self._members[subject.group] = self._members.get(subject.group, 0) + 1
                clip = min(ENGINE_CLIP_TOKENS, subject.max_tokens)
                self._buffer_tokens = max(self._buffer_tokens, int(self.buffer * clip))
                return ()
            case events.ReplicaUp():
                self._occupancy[event.replica] = Occupancy()
                self._set_load(event.replica, 0.0)
                self._stale.add(event.replica)
                self._barrier = self._nobody = None
                self._pool_tokens = _sum_of_pools(now)
            case events.ReplicaDown():
                del self._occupancy[event.replica], self._loads[event.replica]
                self._forecasts.pop(event.replica, None)
                self._stale.discard(event.replica)
                self._full.pop(event.replica, None)
                self._barrier = self._nobody = self._sum_of_loads = None
                for living in self._living.values():
                    living.pop(event.replica, None)
                self._pool_tokens = _sum_of_pools(now)
            case _:
                return ()
        return self._admit(now)

    # ---- what happened ----

    def _ready(self, turn: TrajectoryEntry, now: ScheduleState) -> Iterator[events.Command]:
        if (home := turn.home) is not None:
            self._settle(turn, running=True)
            if self._pause(turn, now):
                self._given_up += turn.context_tokens
                yield events.Drop(traj=turn.traj, replica=home)
                self._take_away(turn, home)
                self._queue.add_lost(turn.traj)
            elif (better := self._better(turn, now)) is not None:
                self._moved += turn.context_tokens
                yield events.Grant(traj=turn.traj, replica=better[0])
                self._take_away(turn, home)
                self._granted(turn, *better)
            else:
                yield events.Grant(traj=turn.traj, replica=home)
        elif turn.turns or turn.context_tokens > turn.prompt_tokens:
            self._queue.add_lost(turn.traj)
        else:
            self._queue.add_new(turn)
        yield from self._admit(now)

    def _granted(self, turn: TrajectoryEntry, replica: int, own: Forecast) -> None:
        found = self._forecast(replica)
        found.add(own)
        self._set_load(replica, found.load(self.forward_tokens))
        self._settle(turn, running=True)

    def _set_load(self, replica: int, load: float) -> None:
        self._loads[replica] = load
        self._sum_of_loads = None

    def _leave(self, subject: TrajectoryEntry, *, finished: bool) -> None:
        self._queue.discard(subject)
        self._lengths.leave(subject.traj, _length(subject), finished=finished)
        self._take_away(subject, subject.home)
        self._members[subject.group] -= 1
        if self._members[subject.group]:
            self._queue.rank(subject.group)
        else:
            del self._members[subject.group]
            self._living.pop(subject.group, None)
            self._queue.forget_group(subject.group)
            self._lengths.forget_group(subject.group)

    def _take_away(self, subject: TrajectoryEntry, home: int | None) -> None:
        if home is not None and home in self._occupancy:
            occupancy = self._occupancy[home]
            occupancy.discard(subject.traj, subject.group, prompt_tokens=subject.prompt_tokens)
            self._count(occupancy, subject.group, home)
            self._changed(home, freed=True)

    def _settle(self, subject: TrajectoryEntry, *, running: bool) -> None:
        """Record its state at its home."""
        assert subject.home is not None
        length = subject.context_tokens - subject.prompt_tokens
        occupancy = self._occupancy[subject.home]
        is_new = occupancy.put(
            subject.traj,
            subject.group,
            prompt_tokens=subject.prompt_tokens,
            curve=self._lengths.turn_starts(subject.traj, subject.turns, length),
            length=length,
            running=running,
        )
        if is_new:
            self._count(occupancy, subject.group, subject.home)
        self._changed(subject.home)

    def _count(self, occupancy: Occupancy, group: str, replica: int) -> None:
        """Write down how many siblings live there."""
        living = self._living.setdefault(group, {})
        if siblings := occupancy.groups.get(group):
            living[replica] = siblings
        else:
            living.pop(replica, None)

    def _changed(self, replica: int, *, freed: bool = False) -> None:
        """Update the replica's forecast: immediately if a trajectory left, else when it is old."""
        found = self._forecasts.get(replica)
        if not freed and found is not None:
            age = self._occupancy[replica].clock - found.clock
            if age <= self._lengths.bin_tokens * FORECAST_AGE:
                return
        self._stale.add(replica)
        self._nobody = None
        if self._full.pop(replica, None) is not None:
            self._barrier = None

    # ---- admission and placement ----

    def _admit(self, now: ScheduleState) -> Iterator[events.Command]:
        while (found := self._next(now)) is not None:
            turn, replica, own = found
            self._queue.start(turn)
            yield events.Grant(traj=turn.traj, replica=replica)
            self._granted(turn, replica, own)

    def _next(self, now: ScheduleState) -> tuple[TrajectoryEntry, int, Forecast] | None:
        """The head of the queue, or the longest of those that fit, as long as heads get their share."""
        queue, lengths = self._queue, self._lengths
        if self._nobody == (queue.version, lengths.version, len(now.ready)):
            return None
        if (found := self._first_that_fits(now)) is None:
            self._nobody = (queue.version, lengths.version, len(now.ready))
        return found

    def _first_that_fits(self, now: ScheduleState) -> tuple[TrajectoryEntry, int, Forecast] | None:
        for place, turn in enumerate(self._queue.heads(now)):
            cell = self._lengths.cell(turn.traj, turn.turns, _length(turn))
            work = self._lengths.work(cell)
            if place and self._filled + work > self.backfill * self._headed:
                return None
            if self._barrier is None:
                is_full = len(self._full) == len(self._loads)
                self._barrier = max(self._full.values(), default=0.0) if is_full else math.inf
            if work < self._barrier and (best := self._best(turn, cell, work, now)) is not None:
                if place:
                    self._filled += work
                else:
                    self._headed += work
                return turn, *best
        return None

    def _best(self, turn: TrajectoryEntry, cell: int, work: float, now: ScheduleState) -> tuple[int, Forecast] | None:
        """Return the replica with room for this turn that holds its siblings, or has the least work left.

        A trajectory with more work than one that found no room in a replica finds none there either.
        """
        for replica in sorted(self._stale):
            self._forecast(replica)
        full, living = self._full, self._living.get(turn.group, {})
        among = [replica for replica in self._loads if work < full.get(replica, math.inf)]
        going_on_K, length, room_K = self._lengths.going_on_K(cell), _length(turn), None
        if self.stagger:
            room_K = 1.0 - self.stagger * (1.0 - self._lengths.steady_K(turn.stage))
        for replica in self._candidates(turn, among, now):
            view, found = now.replicas[replica], self._forecasts[replica]
            if not _can_hold(view, turn):
                continue
            extra = self._buffer_tokens + (0 if replica in living else turn.prompt_tokens)
            limit = view.kv_tokens
            if room_K is not None or not found.exceeds(limit, self.safety, going_on_K, length + extra):
                own = self._forecast_of_one(turn, going_on_K, extra)
                if found.peak(self.safety, own, room_K) <= limit:
                    return replica, own
            full[replica] = work
            self._barrier = None
        return None

    def _candidates(self, turn: TrajectoryEntry, among: list[int], now: ScheduleState) -> list[int]:
        """Return the replicas in order of preference for the turn: home, incomplete blocks, the rest, each by
        load."""
        if len(among) < 2:
            return among
        loads, home = self._loads, turn.home
        living = self._living.get(turn.group, {})
        if home is None and living.keys().isdisjoint(among):
            return sorted(among, key=loads.__getitem__)
        block = self._block(turn, now)
        by_load = sorted(among, key=loads.__getitem__)
        return sorted(by_load, key=lambda at: 0 if at == home else 1 if living.get(at, 0) % block else 2)

    def _block(self, turn: TrajectoryEntry, now: ScheduleState) -> int:
        """The smallest block with which all trajectories could run at once, as far as that helps."""
        block = 1
        while block < self.block:
            each = self._lengths.peak_tokens(turn.stage, turn.prompt_tokens // block)
            if len(now.trajectories) * each <= GATHER_ABOVE * self._pool_tokens:
                break
            block *= 2
        return block

    def _better(self, turn: TrajectoryEntry, now: ScheduleState) -> tuple[int, Forecast] | None:
        """Return a better replica for the turn, or None: its home's load exceeds the mean by more than
        chance, no replica with a higher load needs the recompute budget, and the least loaded replica ends
        before the home in spite of the recompute. Loads are of the last forecasts; those of home and
        destination are updated."""
        home, spare = turn.home, self.move_share * self._generated - self._moved
        if len(self._loads) < 2 or turn.context_tokens > spare:
            return None
        assert home is not None
        found = self._forecast(home)
        if self._above(home, turn) <= 0.0:
            return None
        loads, load = self._loads, self._loads[home]
        relief = load - found.load(self.forward_tokens, less=self._own_forecast(turn, home))
        cost = self.prefill_tokens * turn.context_tokens
        first = sum(other - load for other in loads.values() if other > load)
        if relief < MOVE_GAIN * cost or first > spare * relief / turn.context_tokens:
            return None
        to = min(loads, key=loads.__getitem__)
        own, there = self._own_forecast(turn, to), self._forecast(to)
        if to == home or there.load(self.forward_tokens, extra=own) + cost > load - relief / 2:
            return None
        if not _can_hold(now.replicas[to], turn) or there.peak(self.safety, own) > now.replicas[to].kv_tokens:
            return None
        return to, own

    def _above(self, replica: int, turn: TrajectoryEntry) -> float:
        """Return the load of a replica above the mean, waiting work included, less its expected deviation."""
        found = self._forecasts[replica]
        waiting = self._queue.num_new * self._lengths.mean_work(turn.stage)
        if self._sum_of_loads is None:
            self._sum_of_loads = sum(self._loads.values())
        above = self._loads[replica] - (self._sum_of_loads + waiting) / len(self._loads)
        if above <= 0.0:
            return above
        chance = found.area / math.sqrt(max(1.0, float(found.count_K[0])))
        return above - MOVE_ABOVE * chance

    def _own_forecast(self, turn: TrajectoryEntry, replica: int) -> Forecast:
        cell = self._lengths.cell(turn.traj, turn.turns, _length(turn))
        shared = replica in self._living.get(turn.group, {})
        extra = self._buffer_tokens + (0 if shared else turn.prompt_tokens)
        return self._forecast_of_one(turn, self._lengths.going_on_K(cell), extra)

    def _forecast_of_one(self, turn: TrajectoryEntry, going_on_K: Floats, extra_tokens: int) -> Forecast:
        """Return the forecast of one trajectory; `extra_tokens` are held in addition to its own tokens."""
        bin_tokens, length = self._lengths.bin_tokens, _length(turn)
        ahead_K = ahead(bin_tokens)
        size_K = length + extra_tokens + ahead_K
        mean_K = going_on_K * size_K
        read_K = going_on_K * (length + turn.prompt_tokens + self.request_tokens + ahead_K)
        area = float(np.add.reduce(read_K)) * bin_tokens
        return Forecast(mean_K, mean_K * (1.0 - going_on_K) * size_K, going_on_K.copy(), area, bin_tokens)

    def _forecast(self, replica: int) -> Forecast:
        found = self._forecasts.get(replica)
        if found is None or replica in self._stale:
            self._stale.discard(replica)
            highest = 0 if found is None else found.highest
            found = self._occupancy[replica].forecast(
                self._lengths.chances_NK, self._lengths.bin_tokens, self._buffer_tokens, self.request_tokens
            )
            found.highest = highest
            self._forecasts[replica] = found
            self._set_load(replica, found.load(self.forward_tokens))
        return found

    def _pause(self, turn: TrajectoryEntry, now: ScheduleState) -> bool:
        """Return True if its home is predicted to overflow and its KV is small: it should wait for room
        anywhere."""
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


def _sum_of_pools(now: ScheduleState) -> int:
    return sum(replica.kv_tokens for replica in now.replicas.values())


def _can_hold(replica: ReplicaEntry, turn: TrajectoryEntry) -> bool:
    """Whether the turn fits alone at its limit: predictions are means, and else it could never end."""
    return turn.prompt_tokens + turn.max_tokens <= replica.kv_tokens


def _length(subject: TrajectoryEntry) -> int:
    return subject.context_tokens - subject.prompt_tokens
