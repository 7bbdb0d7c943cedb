"""Which groups may be in flight, and which the next batch must take, so that no token grows too old.

    may_start -> start(key) -> ... group rolls out ... -> finish(key, group) -> take() -> learner

The clock is the number of batches taken. A group born when `taken` batches were taken must be in a batch that
is taken while `taken <= born + max_staleness`. Policy versions advance at most once per batch, so this bounds
the age of the oldest token of every group in versions too, however often its weights changed meanwhile.

Nobody waits in here: the host asks `may_start` and `can_take` after each event.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Group = TypeVar("Group")


class BufferError(Exception):
    """The host broke the protocol of the buffer: a bug, never a matter of luck."""


@dataclass(slots=True)
class _Slot(Generic[Group]):
    """One group from its start until a batch takes it."""

    key: str
    born: int
    order: int
    """Place in the order of starts, or of finishing once finished."""
    group: Group | None = None


class SlotBuffer(Generic[Group]):
    """Groups in flight and groups that wait for the learner, `batch * (max_staleness + 1)` slots in all.

    Invariant: for every age a, the groups that must be taken within the next a + 1 batches are at most
    (a + 1) * batch. So a batch that takes all the overdue ones always has room for them, and no taken group
    is ever staler than `max_staleness`. Proof: a start adds to the largest age only, where the number of
    slots is the bound; `take` takes, for every age, what goes beyond the bound of the age before it.

    `max_staleness` 0 is synchronous training: a batch is what was started since the one before.
    """

    def __init__(self, *, batch: int, max_staleness: int, taken: int = 0) -> None:
        if batch < 1 or max_staleness < 0 or taken < 0:
            raise ValueError(
                "need batch >= 1, max_staleness >= 0 and taken >= 0, "
                f"got batch={batch}, max_staleness={max_staleness}, taken={taken}"
            )
        self.batch, self.max_staleness, self.taken = batch, max_staleness, taken
        self._running: dict[str, _Slot[Group]] = {}
        self._finished: dict[str, _Slot[Group]] = {}
        self._events = 0

    @property
    def num_slots(self) -> int:
        return self.batch * (self.max_staleness + 1)

    @property
    def running(self) -> list[str]:
        """Keys of the groups in flight, oldest first."""
        return list(self._running)

    @property
    def finished(self) -> list[tuple[str, Group]]:
        """Groups that wait for the learner, in the order in which they finished."""
        return [(slot.key, _filled(slot)) for slot in self._finished.values()]

    def born(self, key: str) -> int:
        """Batches that had been taken when the group was started."""
        slot = self._running.get(key) or self._finished.get(key)
        if slot is None:
            raise BufferError(f"no group {key!r} is here")
        return slot.born

    def may_start(self) -> bool:
        """Whether one more group has a slot."""
        return len(self._running) + len(self._finished) < self.num_slots

    def start(self, key: str) -> int:
        """Give a slot to a group; returns its birth."""
        if not self.may_start():
            raise BufferError(f"all {self.num_slots} slots are taken")
        return self._enter(key, self.taken)

    def restore(self, key: str, born: int) -> None:
        """A group of an earlier process, at its old birth; before anything else happens.

        Raises:
            BufferError: it is too old for any batch, or there is no slot for it.
        """
        self._enter(key, born)
        if not self._is_feasible():
            del self._running[key]
            raise BufferError(f"group {key!r}, born at {born}, cannot be taken in time after {self.taken}")

    def _enter(self, key: str, born: int) -> int:
        if key in self._running or key in self._finished:
            raise BufferError(f"group {key!r} is here already")
        self._running[key] = _Slot(key=key, born=born, order=self._next())
        return born

    def finish(self, key: str, group: Group) -> None:
        """The group is whole and waits for the learner."""
        slot = self._running.pop(key, None)
        if slot is None:
            raise BufferError(f"group {key!r} is not in flight")
        slot.group, slot.order = group, self._next()
        self._finished[key] = slot

    def cancel(self, key: str) -> None:
        """The group will never be whole (its tasks are given up): its slot is free."""
        if self._running.pop(key, None) is None:
            raise BufferError(f"group {key!r} is not in flight")

    def can_take(self, count: int | None = None) -> bool:
        """Whether a batch is there: `count` groups (default: a full batch), and all that must go now."""
        return self._choose(self.batch if count is None else count) is not None

    def take(self, count: int | None = None) -> list[tuple[str, Group, int]]:
        """The next batch: (key, group, staleness), first those that must go now, then the first finished.

        It has `count` groups, or more if more must go now; never more than a full batch.

        Raises:
            BufferError: `can_take` is False.
        """
        chosen = self._choose(self.batch if count is None else count)
        if chosen is None:
            raise BufferError("the next batch is not complete")
        now = self.taken
        self.taken += 1
        for slot in chosen:
            del self._finished[slot.key]
        return [(slot.key, _filled(slot), now - slot.born) for slot in chosen]

    def blockers(self) -> list[str]:
        """Groups in flight of which one or more must finish before any batch can be taken; oldest first."""
        demands = list(self._demands())
        finished = list(self._finished.values())
        return [
            slot.key
            for slot in self._running.values()
            if any(
                slot.born <= born and need > sum(other.born <= born for other in finished)
                for born, need in demands
            )
        ]

    def _choose(self, count: int) -> list[_Slot[Group]] | None:
        """A batch after which the invariant still holds, or None. Oldest-finished first within the need."""
        if not 1 <= count <= self.batch:
            raise ValueError(f"a batch has 1 to {self.batch} groups, got {count}")
        rest = sorted(self._finished.values(), key=lambda slot: slot.order)
        chosen: list[_Slot[Group]] = []
        for born, need in self._demands():  # nested: from the oldest births on
            missing = need - sum(slot.born <= born for slot in chosen)
            for slot in [slot for slot in rest if slot.born <= born][: max(0, missing)]:
                chosen.append(slot)
                rest.remove(slot)
                missing -= 1
            if missing > 0:
                return None
        chosen += rest[: max(0, count - len(chosen))]
        return chosen if len(chosen) >= count else None

    def _demands(self) -> Iterator[tuple[int, int]]:
        """(born, n): of the groups born up to then, the next batch must take n or more."""
        for age in range(self.max_staleness, -1, -1):
            born = self.taken - age
            alive = sum(slot.born <= born for slot in self._all())
            room_after = (self.max_staleness - age) * self.batch
            if alive > room_after:
                yield born, alive - room_after

    def _is_feasible(self) -> bool:
        ages = range(self.max_staleness + 1)
        return all(slot.born >= self.taken - self.max_staleness for slot in self._all()) and all(
            sum(slot.born <= self.taken - age for slot in self._all())
            <= (self.max_staleness - age + 1) * self.batch
            for age in ages
        )

    def _all(self) -> list[_Slot[Group]]:
        return [*self._running.values(), *self._finished.values()]

    def _next(self) -> int:
        self._events += 1
        return self._events


def _filled(slot: _Slot[Group]) -> Group:
    assert slot.group is not None
    return slot.group
