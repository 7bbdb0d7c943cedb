"""Which groups may be in flight, and which the next batch must take, so that no token grows too old.

    may_start -> start(key) -> ... group rolls out ... -> finish(key, group) -> take() -> learner -> advance()

The clock is the number of learner steps done. A group born at step b must be taken at a step of at most
b + max_staleness. Policy versions grow at most once per step, and a group's first token is not older than its
birth: so this bounds the age of every token in versions too, however often the weights changed meanwhile.

No caller waits here: the host asks `may_start` and `can_take` after each event.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Group = TypeVar("Group")


class SlotBufferError(Exception):
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

    Invariant: for every n, the groups that must be among the next n batches are at most n * batch. So a batch
    always has room for those that must go now, and none that is taken is staler than `max_staleness`. Proof:
    a start adds to the largest n only, where the slots are the bound; `take` takes, for every n, what
    goes beyond the bound that holds after it; `advance` changes neither side.

    Between `take` and `advance` the learner is at work, and what starts is born at the step before: a batch
    less has room then. `max_staleness` 0 is synchronous training: nothing starts while the learner learns.
    After `take_more(k)` the current step takes k further groups, and k more may start.
    """

    def __init__(self, *, batch: int, max_staleness: int, step: int = 0) -> None:
        if batch < 1 or max_staleness < 0 or step < 0:
            raise ValueError(
                "need batch >= 1, max_staleness >= 0 and step >= 0, "
                f"got batch={batch}, max_staleness={max_staleness}, step={step}"
            )
        self.batch, self.max_staleness, self.step = batch, max_staleness, step
        self.room = batch
        """Groups that the current step may still take; 0 while the learner is at work."""
        self._running: dict[str, _Slot[Group]] = {}
        self._finished: dict[str, _Slot[Group]] = {}
        self._events = 0

    @property
    def num_slots(self) -> int:
        """Groups that may be here now."""
        return self.batch * self.max_staleness + self.room

    @property
    def is_learning(self) -> bool:
        """Whether a batch was taken and its step is not done."""
        return not self.room

    @property
    def running(self) -> list[str]:
        """Keys of the groups in flight, oldest first."""
        return list(self._running)

    @property
    def finished(self) -> list[tuple[str, Group]]:
        """Groups that wait for the learner, in the order in which they finished."""
        return [(slot.key, _filled(slot)) for slot in self._finished.values()]

    @property
    def num_finished(self) -> int:
        """Groups that wait for the learner; may be asked from any thread."""
        return len(self._finished)

    def born(self, key: str) -> int:
        """Learner steps that were done when the group was started."""
        slot = self._running.get(key) or self._finished.get(key)
        if slot is None:
            raise SlotBufferError(f"no group {key!r} is here")
        return slot.born

    def may_start(self) -> bool:
        """Whether one more group has a slot."""
        return len(self._running) + len(self._finished) < self.num_slots

    def start(self, key: str) -> int:
        """Give a slot to a group; returns its birth."""
        if not self.may_start():
            raise SlotBufferError(f"all {self.num_slots} slots are taken")
        return self._enter(key, self.step)

    def restore(self, key: str, born: int) -> None:
        """A group of an earlier process, at its old birth; before anything else happens.

        Raises:
            SlotBufferError: it is too old for any batch, or there is no slot for it.
        """
        self._enter(key, born)
        if not self._is_feasible():
            del self._running[key]
            raise SlotBufferError(f"group {key!r}, born at {born}, cannot be taken in time after step {self.step}")

    def _enter(self, key: str, born: int) -> int:
        if key in self._running or key in self._finished:
            raise SlotBufferError(f"group {key!r} is here already")
        self._running[key] = _Slot(key=key, born=born, order=self._next())
        return born

    def finish(self, key: str, group: Group) -> None:
        """The group is whole and waits for the learner."""
        slot = self._running.pop(key, None)
        if slot is None:
            raise SlotBufferError(f"group {key!r} is not in flight")
        slot.group, slot.order = group, self._next()
        self._finished[key] = slot

    def can_take(self, count: int | None = None) -> bool:
        """Whether a batch is there: `count` groups (default: `room`), and all that must go now."""
        return self._choose(count) is not None

    def take(self, count: int | None = None) -> list[tuple[str, Group, int]]:
        """The next batch: (key, group, staleness), first those that must go now, then the first finished.

        It has `count` groups (default: `room`), or more if more must go now; never more than `room`.

        Raises:
            SlotBufferError: `can_take` is False.
        """
        chosen = self._choose(count)
        if chosen is None:
            raise SlotBufferError("the next batch is not complete")
        self.room = 0
        for slot in chosen:
            del self._finished[slot.key]
        return [(slot.key, _filled(slot), self.step - slot.born) for slot in chosen]

    def take_more(self, count: int) -> None:
        """Let the current step take `count` (1 to `batch`) groups in addition to those that it took."""
        if not self.is_learning:
            raise SlotBufferError("no batch was taken for this step")
        if not 1 <= count <= self.batch:
            raise ValueError(f"a step takes 1 to {self.batch} more groups at a time, got {count}")
        self.room = count

    def advance(self) -> None:
        """The learner has done its step, and its weights serve what starts from now on."""
        if not self.is_learning:
            raise SlotBufferError("no batch was taken for this step")
        self.room = self.batch
        self.step += 1

    def _choose(self, count: int | None) -> list[_Slot[Group]] | None:
        """A batch after which the invariant still holds, or None. Oldest-finished first within the need."""
        if self.is_learning:
            return None
        count = self.room if count is None else count
        if not 1 <= count <= self.room:
            raise ValueError(f"a batch has 1 to {self.room} groups, got {count}")
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
            born = self.step - age
            alive = sum(slot.born <= born for slot in self._all())
            room_after = (self.max_staleness - age) * self.batch
            if alive > room_after:
                yield born, alive - room_after

    def _is_feasible(self) -> bool:
        ages = range(self.max_staleness + 1 - self.is_learning)
        return all(slot.born >= self.step - self.max_staleness for slot in self._all()) and all(
            sum(slot.born <= self.step - age for slot in self._all()) <= (self.max_staleness - age + 1) * self.batch
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
