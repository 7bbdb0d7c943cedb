"""The queue of our policy: those that lost their KV, then siblings that have not started, group by group.

    lost their KV ──> a group's first sibling ──> the groups of the highest level (expected length), longest
                                                  first ──> ... ──> the groups of the lowest level

`heads` yields the head of the queue, then the first of each lower level: what may go ahead of a head that
fits nowhere. An expected length changes with every sibling's turn, so a group is entered anew under its new
rank, and an entry whose rank is not its group's any more is stale.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from rocstar.engine.scheduling.predictor import NUM_LEVELS, LengthPredictor
from rocstar.engine.scheduling.schedule_state import ScheduleState, TrajectoryEntry

_FIRST = -1
"""The bucket of groups without a started sibling; bucket k holds level NUM_LEVELS - k."""
_NOWHERE = (_FIRST - 1, 0.0)


@dataclass(slots=True)
class _WaitingGroup:
    """Siblings that wait for their first turn, in order of submission; `rank` = (bucket, rank in it)."""

    order: int
    stage: str
    trajs: dict[str, None] = field(default_factory=dict)
    started: bool = False
    rank: tuple[int, float] = _NOWHERE


@dataclass(slots=True, eq=False)
class WaitingQueue:
    """Invariant: a group with a waiting sibling has an entry under its rank, so `heads` is complete."""

    lengths: LengthPredictor
    longest_first: bool = True
    num_new: int = 0
    """Trajectories that wait for their first turn."""
    version: int = 0
    """Another one: the heads may have changed."""
    _lost: dict[str, None] = field(default_factory=dict)
    _groups: dict[str, _WaitingGroup] = field(default_factory=dict)
    _heaps: dict[int, list[tuple[float, int, str]]] = field(default_factory=dict)
    """Entries (rank, order of submission, group) of each bucket, the lowest number first."""

    def add_lost(self, traj: str) -> None:
        self._lost[traj] = None
        self.version += 1

    def add_new(self, turn: TrajectoryEntry) -> None:
        found = self._groups.get(turn.group)
        if found is None:
            found = self._groups[turn.group] = _WaitingGroup(order=turn.order, stage=turn.stage)
        self.num_new += turn.traj not in found.trajs
        found.trajs[turn.traj] = None
        self.version += 1
        self.rank(turn.group)

    def start(self, turn: TrajectoryEntry) -> None:
        """It was granted."""
        self.discard(turn)
        if (found := self._groups.get(turn.group)) is not None and not found.started:
            found.started = True
            self.rank(turn.group)

    def discard(self, turn: TrajectoryEntry) -> None:
        """It does not wait any more."""
        self.version += 1
        self._lost.pop(turn.traj, None)
        found = self._groups.get(turn.group)
        if found is not None and turn.traj in found.trajs:
            del found.trajs[turn.traj]
            self.num_new -= 1

    def forget_group(self, group: str) -> None:
        if (found := self._groups.pop(group, None)) is not None:
            self.num_new -= len(found.trajs)
            self.version += 1

    def rank(self, group: str) -> None:
        """Enter the group where it belongs by now."""
        found = self._groups.get(group)
        if found is None or not found.trajs:
            return
        rank = (_FIRST, float(found.order))
        if found.started and self.longest_first:
            expected = self.lengths.group_length(group, found.stage)
            rank = (NUM_LEVELS - self.lengths.level(expected, found.stage), -expected)
        elif found.started:
            rank = (0, float(found.order))
        if rank == found.rank:
            return
        found.rank = rank
        self.version += 1
        bucket, within = rank
        if bucket not in self._heaps:
            self._heaps = dict(sorted({**self._heaps, bucket: []}.items()))
        heapq.heappush(self._heaps[bucket], (within, found.order, group))

    def heads(self, now: ScheduleState) -> Iterator[TrajectoryEntry]:
        """The head of the queue, then those that may go ahead of it; the queue may change only after the
        last one that is asked for."""
        while self._lost:
            traj = next(iter(self._lost))
            if traj in now.ready:
                yield now.ready[traj]
                break
            del self._lost[traj]
        for bucket, heap in self._heaps.items():
            if heap and (found := self._first(bucket, heap, now)) is not None:
                yield found

    def _first(self, bucket: int, heap: list[tuple[float, int, str]], now: ScheduleState) -> TrajectoryEntry | None:
        while heap:
            within, _, group = heap[0]
            found = self._groups.get(group)
            if found is not None and found.rank == (bucket, within):
                while found.trajs:
                    traj = next(iter(found.trajs))
                    if traj in now.ready:
                        return now.ready[traj]
                    del found.trajs[traj]
                    self.num_new -= 1
                found.rank = _NOWHERE
            heapq.heappop(heap)
        return None
