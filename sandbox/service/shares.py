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
    """Invariants: what is taken is at most `total`; an owner that has less than what is kept for it finds the
    rest of that free."""

    def __init__(self, total: int, weights: Mapping[str, int]) -> None:
        self.total = total
        self.taken = 0
        self._by_owner: Counter[str] = Counter()
        weight = sum(weights.values())
        alone = len(weights) < 2  # there is nobody to keep it from
        self._kept = {} if alone else {owner: total * w // (2 * weight) for owner, w in weights.items()}

    def of(self, owner: str) -> int:
        """What it has."""
        return self._by_owner[owner]

    def most(self, owner: str) -> int:
        """What it may ever have."""
        return self.total - sum(kept for name, kept in self._kept.items() if name != owner)

    def fits(self, owner: str, number: int) -> bool:
        """Whether it may take so much more now."""
        if not self._kept:
            return self.taken + number <= self.total
        kept = sum(max(0, k - self._by_owner[name]) for name, k in self._kept.items() if name != owner)
        return self.taken + number + kept <= self.total

    def take(self, owner: str, number: int) -> None:
        self.taken += number
        self._by_owner[owner] = self._by_owner.get(owner, 0) + number

    def give(self, owner: str, number: int) -> None:
        self.taken -= number
        left = self._by_owner.get(owner, 0) - number
        if left:
            self._by_owner[owner] = left
        else:
            self._by_owner.pop(owner, None)

    def largest(self) -> str:
        """The owner that has most, beyond what is kept for it."""
        return max(
            self._by_owner, key=lambda name: self._by_owner[name] - self._kept.get(name, 0), default=""
        )
