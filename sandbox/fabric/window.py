"""How many calls may be in Redis, by how long they take. Pure: no I/O, no clock.

Redis gives entries out in the order in which they came, whosever they are: what is there is what a call of
another owner waits for. So it is limited by time: to what workers hold anyway, and what takes them `AHEAD_S`.
"""

from dataclasses import dataclass

from rocstar.sandbox.fabric.pace import Pace

AHEAD_S = 0.03
"""For so long the calls in Redis beyond those that workers hold suffice: longer than an answer takes from a
worker to its client and the next call back."""


@dataclass(frozen=True, slots=True)
class CallWindow:
    """How many calls of a flavour may be in Redis. capacity: programs that its workers run at a time; they
    hold as many again. most: whatever the calls take."""

    capacity: int
    most: int

    @property
    def spare(self) -> int:
        """Beyond that, for owners that have nothing there: what a worker takes beyond what it holds."""
        return spare_calls(self.capacity)

    def calls(self, pace: Pace) -> int:
        """When a call of that pace is next. What workers hold, and what takes them `AHEAD_S` more; of a kind
        with few answers no more than those, for the quickest calls are answered first."""
        ahead = pace.answers
        if pace.mean_s > 0:
            ahead = int(min(ahead, AHEAD_S * self.capacity / pace.mean_s))  # a quotient that may be infinite
        return min(self.most, 2 * self.capacity + ahead)


def spare_calls(capacity: int) -> int:
    """As many as a supervisor has places for owners that have nothing under way (admission.cpp)."""
    return max(1, capacity // 8)
