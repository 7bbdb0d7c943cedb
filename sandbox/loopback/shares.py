"""A budget that owners share: nobody can take from another what is kept for it.

    total = kept for a | kept for b | ... | first come

Half of the total is kept, by weight, for the owners that are known by their tokens; the other half is for who
comes first. An owner may take what is free, less what is kept for others and not yet taken by them.
"""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

NO_WEIGHTS: Mapping[str, int] = MappingProxyType({})
"""No owner is known: what there is goes to who comes first."""


class Shares:
    """Invariants: what is taken is at most `total`, where `fits` is asked before; an owner that has less than
    what is kept for it finds the rest of that free, also where others took what did not fit."""

    def __init__(self, total: int, weights: Mapping[str, int]) -> None:
        self.total = total
        self.taken = 0
        self._by_owner: Counter[str] = Counter()
        weight = sum(weights.values())
        alone = len(weights) < 2  # there is nobody to keep it from
        self._kept = {} if alone else {owner: total * w // (2 * weight) for owner, w in weights.items()}
        self._left = sum(self._kept.values())  # what is kept and not taken, of all owners together

    def of(self, owner: str) -> int:
        """What it has."""
        return self._by_owner[owner]

    def most(self, owner: str) -> int:
        """What it may ever have."""
        return self.total - sum(kept for name, kept in self._kept.items() if name != owner)

    def fits(self, owner: str, number: int) -> bool:
        """Whether it may take so much more now."""
        if self._by_owner.get(owner, 0) + number <= self._kept.get(owner, -1):
            return True
        of_others = 0
        if self._left:
            of_others = self._left - max(0, self._kept.get(owner, 0) - self._by_owner.get(owner, 0))
        return self.taken + number + of_others <= self.total

    def try_take(self, owner: str, number: int) -> bool:
        """Whether it could, and has."""
        # Without touching what is kept for anybody it fits for sure; else it is to be looked at.
        if self.taken + self._left + number > self.total and not self.fits(owner, number):
            return False
        self.take(owner, number)
        return True

    def take(self, owner: str, number: int) -> None:
        had = self._by_owner.get(owner, 0)
        self.taken += number
        if has := had + number:
            self._by_owner[owner] = has
        else:
            self._by_owner.pop(owner, None)
        if kept := self._kept.get(owner, 0):
            self._left += max(0, kept - has) - max(0, kept - had)

    def give(self, owner: str, number: int) -> None:
        self.take(owner, -number)

    def largest(self) -> str:
        """The owner that has most, beyond what is kept for it."""
        return max(
            self._by_owner, key=lambda name: self._by_owner[name] - self._kept.get(name, 0), default=""
        )
