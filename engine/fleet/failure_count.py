"""Whether a replica fails everything or something: the failures since it last answered a turn.

A server that fails a quarter of its calls must stay. It fails three in a row every hundred calls, and twelve
in a row once in twenty million. So many failures take no time where everything fails: all that run there fail
at once, and where only one does, it is tried there again. But a call fails sooner than it is answered: of a
hundred that begin together, twenty-five may fail before the first answer. So each that began since the last
answer and may yet be answered outweighs a failure.

A turn that fails again and again, among others that may yet be answered, is evidence once: it may be the
turn's own fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class FailureCount:
    """Pure: no clock, no task. A turn is named by its trajectory, as in `Slot.running`."""

    _count: int = 0
    _failed: set[str] = field(default_factory=set)
    """Turns that failed since the last answer."""
    _open: set[str] = field(default_factory=set)
    """Turns that began since the last answer and have not ended."""

    def began(self, turn: str) -> None:
        self._open.add(turn)

    def left(self, turn: str) -> None:
        """It ended, or was given up."""
        self._open.discard(turn)

    def answered(self) -> None:
        """A turn was answered: all before it is forgotten."""
        self._count = 0
        self._failed.clear()
        self._open.clear()

    def failed(self, turn: str, running: Iterable[str], *, is_only: bool) -> int:
        """A turn failed while others were `running` there. Returns the failures now.

        One turn counts once, unless nothing runs there that has not failed, too, or the replica `is_only`:
        the turn then cannot show elsewhere whose fault it is.
        """
        if turn not in self._failed or is_only or self.is_row(running):
            self._count += 1
        self._failed.add(turn)
        return self._count - len(self._open)

    def is_row(self, running: Iterable[str]) -> bool:
        """Whether all that run there have failed there since the last answer: none of them may break the row
        by itself."""
        return all(turn in self._failed for turn in running)
