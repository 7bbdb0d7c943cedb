"""Which rows make a microbatch, so that the ranks of a round work equally long. Pure, stdlib only.

Under FSDP all ranks gather and scatter together in every round, so that a round lasts as long as its longest
microbatch. Rows go by falling cost to the microbatch that has the least so far (longest processing time
first: Graham, Bounds on multiprocessing timing anomalies, 1969), under a budget of tokens.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a row in a forward, in arbitrary units.

    `per_pair` is the cost of attention, which grows with the square of the row's length.
    """

    per_token: float = 1.0
    """Cost of one input token in all projections."""
    per_pair: float = 0.0
    """Cost of one input token that attends to another."""
    per_target: float = 0.0
    """Cost of one loss token in the head."""

    def of(self, own: int, shared: int, targets: int) -> float:
        """Cost of `own` input tokens behind `shared` ones that are computed anyway, with `targets` losses."""
        pairs = own * shared + own * (own + 1) / 2
        return self.per_token * own + self.per_pair * pairs + self.per_target * targets


def balance(sizes: Sequence[int], costs: Sequence[float], *, room: int, ranks: int = 1) -> list[list[int]]:
    """Part items into bins, the costliest bin first, so that `ranks` bins in turn make a round.

    Invariants: every index is in exactly one bin; a bin of several items holds at most `room`; as many bins
    as ranks, if there are as many items.

    Args:
        sizes: tokens of each item.
        costs: what each item costs.
        room: tokens of a bin; an item that is larger is alone in its own.
        ranks: bins that work at the same time.
    """
    if not sizes:
        return []
    order = sorted(range(len(sizes)), key=lambda k: (-costs[k], -sizes[k], k))
    rounds = max(1, -(-sum(min(size, room) for size in sizes) // (room * ranks)))
    while (bins := _filled(order, sizes, costs, room=room, number=rounds * ranks)) is None:
        rounds += 1
    cost_of = {id(one): sum(costs[k] for k in one) for one in bins}
    return sorted(bins, key=lambda one: (-cost_of[id(one)], one))


def _filled(
    order: Sequence[int], sizes: Sequence[int], costs: Sequence[float], *, room: int, number: int
) -> list[list[int]] | None:
    """Items in the given order, each into the cheapest of `number` bins with room; None where none has."""
    bins: list[list[int]] = [[] for _ in range(number)]
    used = [0] * number
    cheapest = [(0.0, b) for b in range(number)]
    for k in order:
        passed = []
        while cheapest and used[cheapest[0][1]] and used[cheapest[0][1]] + sizes[k] > room:
            passed.append(heapq.heappop(cheapest))
        if not cheapest:
            return None
        cost, b = heapq.heappop(cheapest)
        bins[b].append(k)
        used[b] += sizes[k]
        for one in (*passed, (cost + costs[k], b)):
            heapq.heappush(cheapest, one)
    return [sorted(one) for one in bins if one]


def efficiency(costs: Sequence[float], ranks: int) -> float:
    """Return total work over duration for bins of these costs in order: 1 if every rank is always busy."""
    lasting = sum(max(costs[at : at + ranks]) for at in range(0, len(costs), ranks))
    return sum(costs) / (ranks * lasting) if lasting else 1.0
