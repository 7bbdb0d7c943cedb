"""Whose calls are sent next. Pure: no I/O, no clock.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) of calls, each as long as it costs. Owner i has
the weight w_i and a tag F_i; of the owners that wait the one with the smallest is next. Its call starts at

    S = max(F_i, v - OWED / w_i)    then    F_i := S + cost_i / w_i    and    v := max(v, S)

What a call will take is unknown when it is sent, so cost_i is what the owner's latest took, over what all
took. Owners that differ by less than `ALIKE` cost 1 each: programs that are alike are shared out by number,
exactly, and not by what chance made of their times. Of what is beyond, the time is shared.

Nothing here depends on how long a call is away. To share what is out by weight gives programs by weight only
if everybody's come back equally fast, and what is out is a whole number.

Turns alone would let slow calls of one owner fill the workers before the first is answered. So an owner that
has less out than its share of the places, `places * w_i / sum of w` rounded down, comes before its turn. With
equal calls nobody stays there: to end that many at a time it has more out than that.

Edge cases. An owner that comes starts at v: it has no claim on what went before, and is forgotten with its
last call. One that was passed over, because others came before their turn, is owed at most `OWED`. An owner
whose share is less than a place has its turns alone. Without workers there are no places.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rocstar.sandbox.fabric.pace import Pace

OWED = 16
"""Calls of the mean time."""

LEAST_S = 0.001
"""Below it a call costs what its way costs."""

ALIKE = 1.5
"""Three deviations of a mean of 32 times that scatter as those of a machine with too much to do."""


@dataclass(slots=True)
class _Owner:
    """next_turn: F. calls: open ones, of which `out` are being sent or in entries."""

    next_turn: float
    weight: int = 1
    calls: int = 0
    out: int = 0
    pace: Pace = field(default_factory=Pace)


class OwnerTurns:
    """Invariants: an owner that waits and has less out than its share of the places, rounded down, comes
    before all that have theirs. While two owners wait and nobody comes before its turn, what each was given
    by its weight differs by at most (OWED + an entry) / weight, added over both: over any such time, whatever
    the weights, and in whatever order calls end. It is counted in costs; where calls are alike, in calls."""

    def __init__(self) -> None:
        self.out = 0
        self._owners: dict[str, _Owner] = {}  # that have open calls
        self._latest_turn = 0.0
        self._pace = Pace()
        self._total_weight = 0

    def out_of(self, owner: str) -> int:
        return self._owners[owner].out

    def opened(self, owner: str, weight: int) -> None:
        """`weight`: of the owner from now on, at least 1."""
        one = self._owners.get(owner)
        if one is None:
            one = self._owners[owner] = _Owner(self._latest_turn, weight=0, pace=replace(self._pace))
        self._total_weight += weight - one.weight
        one.weight = weight
        one.calls += 1

    def closed(self, owner: str) -> None:
        """A call that is not out is settled or dropped."""
        one = self._owners[owner]
        one.calls -= 1
        if not one.calls:
            self._total_weight -= one.weight
            del self._owners[owner]

    def next(self, waiting: Mapping[str, int], places: int) -> str:
        """The owner that is next. waiting: by owner the number of its oldest call, which decides between
        equals. places: programs that workers run at a time."""
        return min(waiting, key=lambda owner: (*self._rank(owner, places), waiting[owner]))

    def _rank(self, owner: str, places: int) -> tuple[float, float]:
        one = self._owners[owner]
        has_its_places = one.out >= places * one.weight // self._total_weight
        return math.inf if has_its_places else one.out / one.weight, one.next_turn

    def given(self, owner: str, calls: int) -> None:
        """So many of its calls are being sent."""
        one = self._owners[owner]
        turn = max(one.next_turn, self._latest_turn - OWED / one.weight)
        self._latest_turn = max(self._latest_turn, turn)
        one.next_turn = turn + calls * self._cost(one) / one.weight
        one.out += calls
        self.out += calls

    def came_back(self, owner: str) -> None:
        """A call that was given is not out any more."""
        self._owners[owner].out -= 1
        self.out -= 1

    def answered(self, owner: str, wall_s: float) -> None:
        """A call of it ran for so long."""
        self._pace.answered(wall_s)
        self._owners[owner].pace.answered(wall_s)

    def _cost(self, one: _Owner) -> float:
        """Of one call, in calls of the mean time."""
        if not one.pace.answers:
            return 1.0
        ratio = max(LEAST_S, one.pace.mean_s) / max(LEAST_S, self._pace.mean_s)
        return max(ratio / ALIKE, min(1.0, ratio * ALIKE))
