"""A budget that owners share.

    total = reserved for a | reserved for b | ... | first come, first served

Half of the total is reserved, by weight, for the owners that are known by their tokens; the other half goes
to the first requests. An owner may take what is free, less the unused reserve of the other owners.
"""

from collections import Counter
from collections.abc import Mapping


class OwnerBudget:
    """Invariants: at most `total` is taken if each caller checks `fits` first; an owner that has less than
    its reserve can always take the rest of it, even after others exceeded the total."""

    def __init__(self, total: int, weights: Mapping[str, int] | None = None) -> None:
        """weights: of the known owners. Without any, the whole budget is first come, first served."""
        weights = weights or {}
        self.total = total
        self.taken = 0
        self._by_owner: Counter[str] = Counter()
        weight = sum(weights.values())
        alone = len(weights) < 2  # a single owner needs no reserve
        self._reserved = {} if alone else {owner: total * w // (2 * weight) for owner, w in weights.items()}
        self._unused_reserve = sum(self._reserved.values())  # the unused reserve of all owners together

    def used_by(self, owner: str) -> int:
        """Return the amount that the owner has taken."""
        return self._by_owner[owner]

    def limit_of(self, owner: str) -> int:
        """Return the maximum amount that the owner can take."""
        return self.total - sum(reserved for name, reserved in self._reserved.items() if name != owner)

    def fits(self, owner: str, number: int) -> bool:
        """Return True if the owner may take this much more now."""
        if self._by_owner.get(owner, 0) + number <= self._reserved.get(owner, -1):
            return True
        of_others = 0
        if self._unused_reserve:
            of_others = self._unused_reserve - max(0, self._reserved.get(owner, 0) - self._by_owner.get(owner, 0))
        return self.taken + number + of_others <= self.total

    def try_take(self, owner: str, number: int) -> bool:
        """Take the amount if it fits. Return True on success."""
        # Without touching a reserve it fits for sure; otherwise check.
        if self.taken + self._unused_reserve + number > self.total and not self.fits(owner, number):
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
        if reserved := self._reserved.get(owner, 0):
            self._unused_reserve += max(0, reserved - has) - max(0, reserved - had)

    def give(self, owner: str, number: int) -> None:
        self.take(owner, -number)

    def largest_owner(self) -> str:
        """Return the owner that has taken most beyond its reserve."""
        return max(self._by_owner, key=lambda name: self._by_owner[name] - self._reserved.get(name, 0), default="")
