"""Mean call times, and the number of calls in Redis that follows from them. Pure: no I/O, no clock.

Redis delivers entries in the order in which they arrived, whichever owner sent them, so a call waits for the
calls that are already there. Their number is therefore limited by time: the calls that workers hold, and the
calls that take the workers `AHEAD_S`.
"""

from collections import Counter
from dataclasses import dataclass

MEAN_OF = 32
"""The number of answers that the mean is taken over, approximately."""

AHEAD_S = 0.03
"""Seconds of work in Redis beyond the calls that workers hold: longer than an answer takes from a worker to
its client and the next call takes back."""


@dataclass(slots=True)
class MeanCallTime:
    """The mean time of one kind of call: over its first `MEAN_OF` answers, then a moving mean over about as
    many."""

    mean_s: float = 0.0
    answers: int = 0

    def answered(self, wall_s: float) -> None:
        self.answers += 1
        self.mean_s += (wall_s - self.mean_s) / min(self.answers, MEAN_OF)


class CallTimes:
    """The mean call time of each batch. Invariant: a batch has its own mean while it has open calls; batches
    do not predict each other. Calls without a batch share one mean, which is kept."""

    NO_BATCH = 0

    def __init__(self) -> None:
        self._means: dict[tuple[str, int], MeanCallTime] = {}
        self._calls: Counter[tuple[str, int]] = Counter()

    def of(self, flavour: str, batch: int) -> MeanCallTime:
        """Return the batch's mean. Raise KeyError if the batch has no open calls."""
        return self._means[flavour, batch]

    def opened(self, flavour: str, batch: int) -> None:
        self._means.setdefault((flavour, batch), MeanCallTime())
        self._calls[flavour, batch] += 1

    def closed(self, flavour: str, batch: int) -> None:
        """Record that a call of the batch was settled or dropped."""
        key = (flavour, batch)
        self._calls[key] -= 1
        if not self._calls[key] and batch != self.NO_BATCH:
            del self._means[key], self._calls[key]


@dataclass(frozen=True, slots=True)
class CallWindow:
    """The limit on a flavour's calls in Redis.

    Args:
        capacity: programs that its workers run at a time; they hold as many again.
        most: the limit whatever the call times.
    """

    capacity: int
    most: int

    @property
    def spare(self) -> int:
        """The number of calls beyond the limit, for owners that have none in Redis: as many as a worker takes
        beyond the calls that it holds."""
        return spare_calls(self.capacity)

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
