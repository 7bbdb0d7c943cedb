"""The order in which the calls of several owners are sent. Pure: no I/O, no clock.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) of calls; the length of a call is its cost.
Owner i has the weight w_i and a tag F_i; the waiting owner with the smallest tag is next. Its call starts at

    S = max(F_i, v - OWED / w_i)    then    F_i := S + cost_i / w_i    and    v := max(v, S)

The time of a call is unknown when it is sent, so cost_i is the mean time of the owner's latest calls divided
by the mean over all owners. A ratio within `ALIKE` counts as 1, so that similar programs are shared exactly
by number and not by the noise of their times. Beyond it, time is shared.

The tags do not depend on how long a call is in Redis. Sharing the calls in Redis by weight would share
programs by weight only if all calls returned equally fast, and that number is an integer.

With tags alone, slow calls of one owner could fill the workers before the first is answered. So an owner with
fewer calls out than its share of the places, `places * w_i / sum of w` rounded down, precedes the tags. With
equal calls no owner stays in that state: at its rate of answers it has more calls out than its share.

Edge cases. A new owner starts at v: it has no claim on earlier service, and is forgotten with its last call.
An owner that was passed over, because others preceded the tags, is owed at most `OWED`. An owner whose share
is less than one place is served by its tag only. Without workers there are no places.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

# The number of calls in Redis follows from mean call times. Redis delivers entries in the order in which they
# arrived, whichever owner sent them, so a call waits for the calls that are already there. Their number is
# therefore limited by time: the calls that workers hold, and the calls that take the workers `AHEAD_S`.

MEAN_OF = 32
"""The number of answers that the mean is taken over, approximately."""

AHEAD_S = 0.03
"""Seconds of work in Redis beyond the calls that workers hold: longer than an answer takes from a worker to
its client and the next call takes back."""


@dataclass(slots=True)
class MeanCallTime:
    """The mean time of one kind of call: over its first `MEAN_OF` answers, then a moving mean over about as
    many. open_calls: the number of these calls that have no outcome."""

    mean_s: float = 0.0
    answers: int = 0
    open_calls: int = 0

    def answered(self, wall_s: float) -> None:
        self.answers += 1
        self.mean_s += (wall_s - self.mean_s) / min(self.answers, MEAN_OF)


@dataclass(frozen=True, slots=True)
class CallWindow:
    """The limit on a flavour's calls in Redis.

    Args:
        capacity: programs that its workers run at a time; they hold as many again.
        most: the limit whatever the call times.
    """

    capacity: int
    most: int

    def calls(self, call_time: MeanCallTime) -> int:
        """Return the limit for calls of that mean time: the calls that workers hold, and those that take the
        workers `AHEAD_S`, but no more than `answers`, because the quickest calls are answered first."""
        ahead = call_time.answers
        if call_time.mean_s > 0:
            ahead = int(min(ahead, AHEAD_S * self.capacity / call_time.mean_s))  # may be infinite
        return min(self.most, 2 * self.capacity + ahead)


def spare_calls(capacity: int) -> int:
    """Return the number of places that a supervisor keeps for idle owners (admission.cpp)."""
    return max(1, capacity // 8)


OWED = 16
"""The most that an owner can be owed, in calls of the mean time."""

LEAST_S = 0.001
"""The least call time that counts: below it, transport dominates the cost."""

ALIKE = 1.5
"""Three standard deviations of a mean of 32 call times on an overloaded machine, as a ratio."""


@dataclass(slots=True)
class _Owner:
    """next_tag: F. calls: open calls, of which `out` are being sent or in entries."""

    next_tag: float
    weight: int = 1
    calls: int = 0
    out: int = 0
    pace: MeanCallTime = field(default_factory=MeanCallTime)


@dataclass(eq=False)
class OwnerFairQueue:
    """The order of owners of one flavour.

    Invariants: a waiting owner with fewer calls out than its share of the places, rounded down, precedes all
    owners that have their share. While two owners wait and none precedes the tags, the service per weight of
    both differs by at most the sum of (OWED + an entry) / weight over both, in any interval, for any weights
    and any order of answers. Service is counted in costs; if calls are alike, in calls.
    """

    out: int = 0
    owners: dict[str, _Owner] = field(default_factory=dict)  # that have open calls
    _virtual_time: float = 0.0
    _pace: MeanCallTime = field(default_factory=MeanCallTime)
    _total_weight: int = 0

    def opened(self, owner: str, weight: int) -> None:
        """Add an open call. weight: the owner's weight from now on, at least 1."""
        one = self.owners.get(owner)
        if one is None:
            one = self.owners[owner] = _Owner(self._virtual_time, weight=0, pace=replace(self._pace))
        self._total_weight += weight - one.weight
        one.weight = weight
        one.calls += 1

    def closed(self, owner: str) -> None:
        """Remove a call that is not out: it was settled or dropped."""
        one = self.owners[owner]
        one.calls -= 1
        if not one.calls:
            self._total_weight -= one.weight
            del self.owners[owner]

    def next(self, waiting: Mapping[str, int], places: int) -> str:
        """Return the next owner. waiting: the id of each owner's oldest call, which breaks ties. places: the
        number of programs that workers run at a time."""
        return min(waiting, key=lambda owner: (*self._rank(owner, places), waiting[owner]))

    def _rank(self, owner: str, places: int) -> tuple[float, float]:
        one = self.owners[owner]
        has_its_places = one.out >= places * one.weight // self._total_weight
        return math.inf if has_its_places else one.out / one.weight, one.next_tag

    def charge(self, owner: str, calls: int) -> None:
        """Charge the owner for calls that are being sent."""
        one = self.owners[owner]
        tag = max(one.next_tag, self._virtual_time - OWED / one.weight)
        self._virtual_time = max(self._virtual_time, tag)
        one.next_tag = tag + calls * self._cost(one) / one.weight
        one.out += calls
        self.out += calls

    def release(self, owner: str) -> None:
        """Record that a sent call is no longer out."""
        self.owners[owner].out -= 1
        self.out -= 1

    def answered(self, owner: str, wall_s: float) -> None:
        """Add the time of an answered call."""
        self._pace.answered(wall_s)
        self.owners[owner].pace.answered(wall_s)

    def _cost(self, one: _Owner) -> float:
        """Return the cost of one call of the owner, in calls of the mean time."""
        if not one.pace.answers:
            return 1.0
        ratio = max(LEAST_S, one.pace.mean_s) / max(LEAST_S, self._pace.mean_s)
        return max(ratio / ALIKE, min(1.0, ratio * ALIKE))
