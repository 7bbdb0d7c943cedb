"""Which calls a client still owes an answer, and where each of them is. Pure: no I/O, no clock.

            take           sent              answer
    outbox ------> sending ------> in entry --------> settled (gone)
      ^  ^            | unsent        | |  retryable error
      |  +------------+      lost     | +-----------------> parked --requeue--+
      |  +----------------------------+                                       |
      +-----------------------------------------------------------------------+

`drop` (cancelled, deadline) takes a call out from wherever it is. Whose calls `take` gives next is decided in
turns.py, and how many may be out in window.py.
"""

import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from rocstar.sandbox.fabric.errors import lost_error
from rocstar.sandbox.fabric.pace import Paces
from rocstar.sandbox.fabric.turns import OwnerTurns
from rocstar.sandbox.fabric.window import CallWindow
from rocstar.sandbox.fabric.wire import Answer, Outcome, request_weight
from rocstar.sandbox.types import ExecRequest, ExecResult, SandboxError


class Place(Enum):
    OUTBOX = auto()
    SENDING = auto()
    ENTRY = auto()
    PARKED = auto()


class Effect(Enum):
    """What an answer did. SETTLED: the caller has it. RETRY: the call is parked for another attempt.
    LATE: the call was settled before, or this error is of an attempt that no longer counts."""

    SETTLED = auto()
    RETRY = auto()
    LATE = auto()


@dataclass(slots=True, eq=False, kw_only=True)
class OpenCall:
    """One call until it is settled.

    Args:
        batch: calls of different batches never share an entry, except those of batch 0.
        entry_calls: the largest entry it may be part of.
        attempts: retryable errors so far.
        losses: how often Redis lost it.
    """

    id: int
    request: ExecRequest
    deadline: float | None
    opened_at: float
    batch: int
    entry_calls: int
    settle: Callable[[Outcome], None]
    place: Place = Place.OUTBOX
    ref: str = ""
    attempts: int = 0
    losses: int = 0
    again: bool = False

    @property
    def key(self) -> tuple[str, bool]:
        """Its outbox: an entry has one flavour, and calls that were accepted before are never refused."""
        return self.request.flavour, self.again

    @property
    def weight(self) -> int:
        """About how many characters it takes in an entry."""
        return request_weight(self.request)


@dataclass(slots=True)
class CallLedger:
    """Invariants: an opened call is in exactly one place (outbox, being sent, one entry, parked) until it is
    settled or dropped; `settle` runs at most once per call, and never after `drop`; an entry in `entries`
    has at least one call. `abandoned` collects entries that Redis may still hold although nobody waits for
    any of their calls: the caller deletes them there and clears the list. `flavours` and `weight` sum up
    `calls`. Of a flavour in `windows` a call is sent only where its window has room, beside those that are
    being sent or in entries: what waits here can still be shared out, what Redis has is taken in order. An
    owner that has nothing there finds a few places more, and so does not wait for what others have there. Of
    an owner's calls those that were sent before are next: nothing that comes later passes them."""

    max_attempts: int = 3
    max_losses: int = 10
    calls: dict[int, OpenCall] = field(default_factory=dict)
    entries: dict[str, set[int]] = field(default_factory=dict)
    abandoned: list[str] = field(default_factory=list)
    flavours: Counter[str] = field(default_factory=Counter)
    weight: int = 0
    windows: Mapping[str, CallWindow] = field(default_factory=dict)
    _torn: set[str] = field(default_factory=set)
    _outboxes: dict[tuple[str, bool], dict[str, OrderedDict[int, OpenCall]]] = field(default_factory=dict)
    _turns: dict[str, OwnerTurns] = field(default_factory=dict)  # by flavour; calls of nobody are one owner's
    _paces: Paces = field(default_factory=Paces)
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def open(
        self,
        request: ExecRequest,
        settle: Callable[[Outcome], None],
        *,
        deadline: float | None = None,
        opened_at: float = 0.0,
        batch: int = 0,
        entry_calls: int = 16,
    ) -> OpenCall:
        call = OpenCall(
            id=next(self._ids),
            request=request,
            deadline=deadline,
            opened_at=opened_at,
            batch=batch,
            entry_calls=entry_calls,
            settle=settle,
        )
        self.calls[call.id] = call
        self.flavours[request.flavour] += 1
        self.weight += call.weight
        self._turns.setdefault(request.flavour, OwnerTurns()).opened(request.owner, request.weight)
        self._paces.opened(request.flavour, batch)
        self._outbox(call)[call.id] = call
        return call

    @property
    def next_key(self) -> tuple[str, bool] | None:
        """Flavour of the calls that `take` gives next, and whether they were sent before. None when none
        waits for which there is room."""
        found = self._next()
        return found[0] if found else None

    def _next(self) -> tuple[tuple[str, bool], str, int] | None:
        """The outbox that is next, the owner that is next there, and how many of its calls may be sent."""
        for flavour in dict.fromkeys(flavour for flavour, _ in self._outboxes):
            window, again = self.windows.get(flavour), self._outboxes.get((flavour, True), {})
            owners = {**self._outboxes.get((flavour, False), {}), **again}
            oldest = {owner: next(iter(calls)) for owner, calls in owners.items()}
            owner = self._turns[flavour].next(oldest, places=window.capacity if window else 0)
            room = self._room(window, self.calls[oldest[owner]]) if window else len(self.calls)
            if room > 0:
                return (flavour, owner in again), owner, room
        return None

    def _room(self, window: CallWindow, first: OpenCall) -> int:
        """For calls of the owner that is next, of which `first` is the oldest."""
        flavour, turns = first.request.flavour, self._turns[first.request.flavour]
        room = window.calls(self._paces.of(flavour, first.batch)) - turns.out
        if room > 0 or turns.out_of(first.request.owner):
            return room
        return int(room + window.spare > 0)  # one at a time: after that it has something

    def take(self, max_weight: int) -> list[OpenCall]:
        """The next entry's calls, moved from the outbox to being sent; [] when there is no `next_key`. Of one
        owner, one batch (or of none), one kind, and together of at most `max_weight` unless one alone is
        heavier."""
        found = self._next()
        if found is None:
            return []
        key, owner, room = found
        outbox = self._outboxes[key][owner]
        taken: list[OpenCall] = []
        weight = 0
        while outbox:
            call = next(iter(outbox.values()))
            weight += call.weight
            if taken and (
                call.batch != taken[0].batch
                or len(taken) >= min(call.entry_calls, taken[0].entry_calls, room)
                or weight > max_weight
            ):
                break
            self._take_out(call)
            call.place = Place.SENDING
            taken.append(call)
        self._turns[key[0]].given(owner, len(taken))
        return taken

    def sent(self, calls: Iterable[OpenCall], ref: str) -> None:
        """Redis holds these calls as entry `ref`."""
        waiting = [call for call in calls if call.id in self.calls and call.place is Place.SENDING]
        for call in waiting:
            call.place, call.ref = Place.ENTRY, ref
        if waiting:
            self.entries[ref] = {call.id for call in waiting}
        else:
            self.abandoned.append(ref)

    def unsent(self, calls: Iterable[OpenCall]) -> None:
        """Redis may or may not hold these calls: they go out again."""
        for call in calls:
            if call.id in self.calls and call.place is Place.SENDING:
                self._to_outbox(call)

    def lost(self, ref: str) -> int:
        """Redis no longer holds this entry: its calls go out again, but not for ever. How many they are."""
        ids = self.entries.pop(ref, set())
        self._torn.discard(ref)
        for call_id in ids:
            call = self.calls[call_id]
            call.losses += 1
            self._to_outbox(call)
            if call.losses >= self.max_losses:
                self._settle(call, lost_error(call.losses), by=None)
        return len(ids)

    def oldest(self, count: int) -> list[str]:
        """The entries that were not looked at for longest; they go to the end of the line."""
        refs = list(itertools.islice(self.entries, count))
        for ref in refs:
            self.entries[ref] = self.entries.pop(ref)
        return refs

    def requeue(self, call_id: int) -> None:
        """A parked call goes out again."""
        call = self.calls.get(call_id)
        if call is not None and call.place is Place.PARKED:
            self._to_outbox(call)

    def answer(self, answer: Answer) -> list[tuple[Effect, int]]:
        """Settles, parks or ignores. A result counts whichever attempt it comes from; an error only when it
        comes from the entry that the call is in now. An answer for all speaks to the entry's own calls."""
        if answer.call_id is not None:
            return [(self._answer_one(answer.ref, answer.call_id, answer.outcome), answer.call_id)]
        ids = sorted(self.entries.get(answer.ref, ()))
        return [(self._answer_one(answer.ref, call_id, answer.outcome), call_id) for call_id in ids]

    def _answer_one(self, ref: str, call_id: int, outcome: Outcome) -> Effect:
        call = self.calls.get(call_id)
        if call is None:
            return Effect.LATE
        if isinstance(outcome, ExecResult):
            self._paces.of(call.request.flavour, call.batch).answered(outcome.wall_s)
            self._turns[call.request.flavour].answered(call.request.owner, outcome.wall_s)
            self._settle(call, outcome, by=ref)
            return Effect.SETTLED
        # While being sent, the answer can overtake the reply that tells the entry's name.
        if call.place is not Place.SENDING and (call.place is not Place.ENTRY or call.ref != ref):
            return Effect.LATE
        call.attempts += 1
        if not outcome.retryable or outcome.kind == "deadline" or call.attempts >= self.max_attempts:
            self._settle(call, outcome, by=ref)
            return Effect.SETTLED
        self._leave(call, by=ref)
        call.place = Place.PARKED
        return Effect.RETRY

    def drop(self, call_ids: Iterable[int]) -> None:
        """Nobody waits for these calls any more."""
        for call_id in call_ids:
            call = self.calls.get(call_id)
            if call is not None:
                self._forget(call, by=None)

    def fail(self, call_ids: Iterable[int], error: SandboxError) -> None:
        """Settles calls with an error of the client's own."""
        for call_id in call_ids:
            call = self.calls.get(call_id)
            if call is not None:
                self._settle(call, error, by=None)

    def _settle(self, call: OpenCall, outcome: Outcome, *, by: str | None) -> None:
        self._forget(call, by=by)
        call.settle(outcome)

    def _forget(self, call: OpenCall, *, by: str | None) -> None:
        del self.calls[call.id]
        self.weight -= call.weight
        self.flavours[call.request.flavour] -= 1
        if not self.flavours[call.request.flavour]:
            del self.flavours[call.request.flavour]
        self._leave(call, by=by)
        self._turns[call.request.flavour].closed(call.request.owner)
        self._paces.closed(call.request.flavour, call.batch)

    def _leave(self, call: OpenCall, *, by: str | None) -> None:
        """`by`: the entry whose answer this is. An entry that gave an answer to each of its calls is gone
        from Redis; one that a call left for another reason may still be there, and even be running."""
        if call.place is Place.OUTBOX:
            self._take_out(call)
        self._come_back(call)
        if call.place is Place.ENTRY:
            waiting = self.entries[call.ref]
            waiting.discard(call.id)
            if by != call.ref:
                self._torn.add(call.ref)
            if not waiting:
                del self.entries[call.ref]
                if call.ref in self._torn:
                    self._torn.discard(call.ref)
                    self.abandoned.append(call.ref)

    def _outbox(self, call: OpenCall) -> "OrderedDict[int, OpenCall]":
        return self._outboxes.setdefault(call.key, {}).setdefault(call.request.owner, OrderedDict())

    def _take_out(self, call: OpenCall) -> None:
        owners = self._outboxes[call.key]
        del owners[call.request.owner][call.id]
        if not owners[call.request.owner]:
            del owners[call.request.owner]
        if not owners:
            del self._outboxes[call.key]

    def _come_back(self, call: OpenCall) -> None:
        """It is not out any more, if it was."""
        if call.place in (Place.SENDING, Place.ENTRY):
            self._turns[call.request.flavour].came_back(call.request.owner)

    def _to_outbox(self, call: OpenCall) -> None:
        self._come_back(call)
        call.place, call.ref, call.again = Place.OUTBOX, "", True
        self._outbox(call)[call.id] = call
