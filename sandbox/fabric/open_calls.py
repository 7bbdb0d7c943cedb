"""The open calls of a client and the state of each. Pure: no I/O, no clock.

            take           sent              answer
    outbox ------> sending ------> in entry --------> settled (gone)
      ^  ^            | unsent        | |  retryable error
      |  +------------+      lost     | +-----------------> parked --requeue--+
      |  +----------------------------+                                       |
      +-----------------------------------------------------------------------+

`drop` (cancelled, deadline) removes a call from any state. owner_queue.py decides which owner's calls `take`
returns next, and how many calls may be in Redis.
"""

import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from rocstar.sandbox.fabric.owner_queue import CallWindow, MeanCallTime, OwnerFairQueue, spare_calls
from rocstar.sandbox.fabric.wire import Answer, Outcome, request_weight
from rocstar.sandbox.types import ExecRequest, ExecResult, SandboxError

NO_BATCH = 0


class CallState(Enum):
    OUTBOX = auto()
    SENDING = auto()
    ENTRY = auto()
    PARKED = auto()


class Effect(Enum):
    """The effect of an answer. SETTLED: the caller has it. RETRY: the call is parked for another attempt.
    LATE: the call was already settled, or the error belongs to an earlier attempt."""

    SETTLED = auto()
    RETRY = auto()
    LATE = auto()


@dataclass(slots=True, eq=False, kw_only=True)
class OpenCall:
    """One call until it is settled.

    Args:
        batch: calls of different batches never share an entry; or NO_BATCH.
        entry_calls: the maximum of calls in its entry.
        attempts: retryable errors so far.
        losses: the number of times that Redis lost it.
    """

    id: int
    request: ExecRequest
    deadline: float | None
    opened_at: float
    batch: int
    entry_calls: int
    settle: Callable[[Outcome], None]
    state: CallState = CallState.OUTBOX
    ref: str = ""
    attempts: int = 0
    losses: int = 0
    again: bool = False

    @property
    def key(self) -> tuple[str, bool]:
        """The call's outbox. An entry has one flavour; calls that were accepted before are never refused."""
        return self.request.flavour, self.again

    @property
    def weight(self) -> int:
        """The characters that the call takes in an entry, approximately."""
        return request_weight(self.request)


@dataclass(slots=True)
class OpenCalls:
    """The calls of a client that have no outcome yet.

    abandoned: entries that Redis may still hold although no caller waits for any of their calls; the sender
    deletes them there and clears the list. flavours, weight: totals over `calls`.

    A call is sent only while the window of its flavour (`windows`) has room besides the calls that are being
    sent or in entries: calls that wait here can still be shared among owners, while Redis delivers in order.
    An owner without calls in Redis gets a few extra places. Of an owner's calls, those that were sent before
    go first.

    Invariants: an open call is in exactly one state until it is settled or dropped; `settle` runs at most
    once per call, and never after `drop`; an entry in `entries` has at least one call.
    """

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
    _queues: dict[str, OwnerFairQueue] = field(default_factory=dict)  # by flavour; "" counts as an owner
    # By flavour and batch: batches do not predict each other. The mean of the calls without a batch is kept.
    _call_times: dict[tuple[str, int], MeanCallTime] = field(default_factory=dict)
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def open(
        self,
        request: ExecRequest,
        settle: Callable[[Outcome], None],
        *,
        deadline: float | None = None,
        opened_at: float = 0.0,
        batch: int = NO_BATCH,
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
        self._queues.setdefault(request.flavour, OwnerFairQueue()).opened(request.owner, request.weight)
        self._call_times.setdefault((request.flavour, batch), MeanCallTime()).open_calls += 1
        self._outbox(call)[call.id] = call
        return call

    @property
    def next_key(self) -> tuple[str, bool] | None:
        """The (flavour, was sent before) of the calls that `take` returns next, or None if no call may be
        sent."""
        found = self._next()
        return found[0] if found else None

    def _next(self) -> tuple[tuple[str, bool], str, int] | None:
        """Return the next outbox, the next owner in it, and the number of its calls that may be sent."""
        for flavour in dict.fromkeys(flavour for flavour, _ in self._outboxes):
            window, again = self.windows.get(flavour), self._outboxes.get((flavour, True), {})
            owners = {**self._outboxes.get((flavour, False), {}), **again}
            oldest = {owner: next(iter(calls)) for owner, calls in owners.items()}
            owner = self._queues[flavour].next(oldest, places=window.capacity if window else 0)
            room = self._room(window, self.calls[oldest[owner]]) if window else len(self.calls)
            if room > 0:
                return (flavour, owner in again), owner, room
        return None

    def _room(self, window: CallWindow, first: OpenCall) -> int:
        """Return the number of calls that the next owner may send; `first` is its oldest."""
        flavour, queue = first.request.flavour, self._queues[first.request.flavour]
        room = window.calls(self._call_times[flavour, first.batch]) - queue.out
        if room > 0 or queue.owners[first.request.owner].out:
            return room
        # As many as a worker takes beyond the calls that it holds; one at a time: then the owner is not idle.
        return int(room + spare_calls(window.capacity) > 0)

    def take(self, max_weight: int) -> list[OpenCall]:
        """Move the calls of the next entry from the outbox to SENDING and return them; [] if there are none.

        They have one owner, one batch (or none) and one key, and weigh at most `max_weight` together unless a
        single call is heavier.
        """
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
            call.state = CallState.SENDING
            taken.append(call)
        self._queues[key[0]].charge(owner, len(taken))
        return taken

    def sent(self, calls: Iterable[OpenCall], ref: str) -> None:
        """Record that Redis holds these calls as entry `ref`."""
        waiting = [call for call in calls if call.id in self.calls and call.state is CallState.SENDING]
        for call in waiting:
            call.state, call.ref = CallState.ENTRY, ref
        if waiting:
            self.entries[ref] = {call.id for call in waiting}
        else:
            self.abandoned.append(ref)

    def unsent(self, calls: Iterable[OpenCall]) -> None:
        """Return calls to the outbox, because Redis may or may not hold them."""
        for call in calls:
            if call.id in self.calls and call.state is CallState.SENDING:
                self._to_outbox(call)

    def lost(self, ref: str) -> int:
        """Return the calls of an entry that Redis lost to the outbox, at most `max_losses` times per call.
        Return their number."""
        ids = self.entries.pop(ref, set())
        self._torn.discard(ref)
        for call_id in ids:
            call = self.calls[call_id]
            call.losses += 1
            self._to_outbox(call)
            if call.losses >= self.max_losses:
                message = f"Redis lost this call {call.losses} times without an answer"
                self._settle(call, SandboxError(message, kind="fabric", retryable=True))
        return len(ids)

    def oldest(self, count: int) -> list[str]:
        """Return the entries that were audited longest ago and move them to the end of the order."""
        refs = list(itertools.islice(self.entries, count))
        for ref in refs:
            self.entries[ref] = self.entries.pop(ref)
        return refs

    def requeue(self, call_id: int) -> None:
        """Return a parked call to the outbox."""
        call = self.calls.get(call_id)
        if call is not None and call.state is CallState.PARKED:
            self._to_outbox(call)

    def answer(self, answer: Answer) -> list[tuple[Effect, int]]:
        """Settle or park calls, or ignore the answer. A result counts whichever attempt it belongs to; an
        error only if it belongs to the call's current entry. An answer without call id is for all calls of
        its entry."""
        if answer.call_id is not None:
            return [(self._answer_one(answer.ref, answer.call_id, answer.outcome), answer.call_id)]
        ids = sorted(self.entries.get(answer.ref, ()))
        return [(self._answer_one(answer.ref, call_id, answer.outcome), call_id) for call_id in ids]

    def _answer_one(self, ref: str, call_id: int, outcome: Outcome) -> Effect:
        call = self.calls.get(call_id)
        if call is None:
            return Effect.LATE
        if isinstance(outcome, ExecResult):
            self._call_times[call.request.flavour, call.batch].answered(outcome.wall_s)
            self._queues[call.request.flavour].answered(call.request.owner, outcome.wall_s)
            self._settle(call, outcome, by=ref)
            return Effect.SETTLED
        # The answer can arrive before the reply to ENQUEUE that has the entry's ref.
        if call.state is not CallState.SENDING and (call.state is not CallState.ENTRY or call.ref != ref):
            return Effect.LATE
        call.attempts += 1
        if not outcome.retryable or outcome.kind == "deadline" or call.attempts >= self.max_attempts:
            self._settle(call, outcome, by=ref)
            return Effect.SETTLED
        self._leave(call, by=ref)
        call.state = CallState.PARKED
        return Effect.RETRY

    def drop(self, call_ids: Iterable[int]) -> None:
        """Forget calls whose callers no longer wait."""
        for call_id in call_ids:
            call = self.calls.get(call_id)
            if call is not None:
                self._forget(call)

    def fail(self, call_ids: Iterable[int], error: SandboxError) -> None:
        """Settle calls with an error of the client."""
        for call_id in call_ids:
            call = self.calls.get(call_id)
            if call is not None:
                self._settle(call, error)

    def _settle(self, call: OpenCall, outcome: Outcome, *, by: str | None = None) -> None:
        self._forget(call, by=by)
        call.settle(outcome)

    def _forget(self, call: OpenCall, *, by: str | None = None) -> None:
        del self.calls[call.id]
        self.weight -= call.weight
        self.flavours[call.request.flavour] -= 1
        if not self.flavours[call.request.flavour]:
            del self.flavours[call.request.flavour]
        self._leave(call, by=by)
        self._queues[call.request.flavour].closed(call.request.owner)
        call_time = self._call_times[call.request.flavour, call.batch]
        call_time.open_calls -= 1
        if not call_time.open_calls and call.batch != NO_BATCH:
            del self._call_times[call.request.flavour, call.batch]

    def _leave(self, call: OpenCall, *, by: str | None) -> None:
        """Remove a call from its state. by: the entry whose answer settled it.

        An entry that answered all its calls is gone from Redis; one that a call left for another reason may
        still be there, and may even be running.
        """
        if call.state is CallState.OUTBOX:
            self._take_out(call)
        self._mark_returned(call)
        if call.state is CallState.ENTRY:
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

    def _mark_returned(self, call: OpenCall) -> None:
        """Record that the call is no longer in Redis, if it was."""
        if call.state in (CallState.SENDING, CallState.ENTRY):
            self._queues[call.request.flavour].release(call.request.owner)

    def _to_outbox(self, call: OpenCall) -> None:
        self._mark_returned(call)
        call.state, call.ref, call.again = CallState.OUTBOX, "", True
        self._outbox(call)[call.id] = call
