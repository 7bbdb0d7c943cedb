"""How often which whole number came, without keeping the numbers."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Histogram:
    """Counts of whole numbers from 0 on, in a few bins.

    Invariant: bin i holds how many of the numbers lie in [i * width, (i + 1) * width); the bins up to the
    highest that is used are at most `MOST`, and `width` is a power of two.
    """

    MOST = 32

    width: int = 1
    bins: list[int] = field(default_factory=list)
    number: int = 0
    total: int = 0
    """The sum of the numbers, for their mean."""

    def add(self, value: int) -> None:
        """Count one number, 0 or more."""
        while value // self.width >= self.MOST:
            self._double()
        at = value // self.width
        self.bins += [0] * (at + 1 - len(self.bins))
        self.bins[at] += 1
        self.number += 1
        self.total += value

    def _double(self) -> None:
        self.bins = [sum(self.bins[i : i + 2]) for i in range(0, len(self.bins), 2)]
        self.width *= 2

    def at_width(self, width: int) -> list[int]:
        """The bins in another width: this one times a power of two."""
        size = width // self.width
        return [sum(self.bins[i : i + size]) for i in range(0, len(self.bins), size)]

    @property
    def mean(self) -> float | None:
        return self.total / self.number if self.number else None


def aligned(histograms: list[Histogram]) -> tuple[int, list[list[int]]]:
    """The smallest width that all can have, and the bins of each in it, equally many."""
    width = max((h.width for h in histograms), default=1)
    found = [h.at_width(width) for h in histograms]
    longest = max(map(len, found), default=0)
    return width, [bins + [0] * (longest - len(bins)) for bins in found]
