"""How long calls take, by their latest answers. Pure: no I/O, no clock."""

from collections import Counter
from dataclasses import dataclass

PACE_OF = 32
"""Answers over which the mean time of a call is taken, about."""


@dataclass(slots=True)
class Pace:
    """mean_s: how long calls of a kind take, by its `answers`: the mean of the first `PACE_OF`, after that of
    about so many latest ones."""

    mean_s: float = 0.0
    answers: int = 0

    def answered(self, wall_s: float) -> None:
        self.answers += 1
        self.mean_s += (wall_s - self.mean_s) / min(self.answers, PACE_OF)


class Paces:
    """Invariant: a batch has its own pace for as long as it has open calls, and no other's is taken for it:
    what one is like says nothing about the next. Calls of no batch share one, which stays."""

    NO_BATCH = 0

    def __init__(self) -> None:
        self._paces: dict[tuple[str, int], Pace] = {}
        self._calls: Counter[tuple[str, int]] = Counter()

    def of(self, flavour: str, batch: int) -> Pace:
        """Raises KeyError for a batch that has no open calls."""
        return self._paces[flavour, batch]

    def opened(self, flavour: str, batch: int) -> None:
        self._paces.setdefault((flavour, batch), Pace())
        self._calls[flavour, batch] += 1

    def closed(self, flavour: str, batch: int) -> None:
        """A call of it is settled or dropped."""
        key = (flavour, batch)
        self._calls[key] -= 1
        if not self._calls[key] and batch != self.NO_BATCH:
            del self._paces[key], self._calls[key]
