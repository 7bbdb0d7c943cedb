"""Grants of groups to nodes: a pure state machine, with no task, no clock and no randomness.

    submit, ended, failed, withdraw, up, down, seen ──> Grants ──> grants(): (group, node) pairs

A group here is one order: some siblings of one task.

A group goes, in the order of submission, to the node with the most predicted-free KV:

    free = fill * total - max(used, sum over the groups it has of size * predicted tokens of a trajectory)

`used` is the node's last report, the sum is the predicted final size of those groups, and `fill` is the
factor by which a node's KV may be overcommitted, because its own scheduler queues turns that do not fit yet.
A node without groups takes one even if it does not fit. Lengths are predicted by their running mean, per
response limit. nodes.py drives this state machine.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rocstar.engine.types import Group

PART = 4
"""Siblings that go to a node together. Whole groups of 32 leave eight nodes with unequal work, and steps are
longer (docs/reference/nodes.md has the figures). Within a node siblings lie in blocks of about that size
anyway."""
FILL = 4.0
"""The share of a node's KV that is granted, by the predicted final size of trajectories. Turns that do not
fit yet wait in the node's own scheduler."""
PRIOR_WEIGHT = 8.0
"""Imagined trajectories of full length behind a mean."""
REMEMBERED = 1024
"""Trajectories that a mean is over: the policy's lengths drift."""
MAX_AWAY = 2
"""Failures of a group on other nodes, until it is rolled out at home: it may be what fails them."""


@dataclass(slots=True, kw_only=True, eq=False)
class GroupEntry:
    """A group that has not ended. `node` is None while it waits."""

    key: str
    number: int
    """The place in the order of submission."""
    size: int
    limit_tokens: int
    away: bool
    """It may leave home."""
    node: str | None = None
    failures: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class NodeEntry:
    """A node. One that is not up keeps the groups it has until they end or fail."""

    name: str
    total_tokens: int
    used_tokens: int = 0
    is_up: bool = True
    groups: dict[str, GroupEntry] = field(default_factory=dict)
    sizes: Counter[int] = field(default_factory=Counter)
    """Trajectories that it has, by their limit."""


class Lengths:
    """Tokens of a trajectory, prompt included: a running mean that leans on the response limit."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[int]] = {}
        self._means: dict[int, float] = {}

    def add(self, limit_tokens: int, tokens: Sequence[int]) -> None:
        seen = self._seen.setdefault(limit_tokens, deque(maxlen=REMEMBERED))
        seen.extend(tokens)
        self._means[limit_tokens] = (sum(seen) + PRIOR_WEIGHT * limit_tokens) / (len(seen) + PRIOR_WEIGHT)

    def mean(self, limit_tokens: int) -> float:
        return self._means.get(limit_tokens, float(limit_tokens))


class Grants:
    """Invariants (see `check`):
    - A group is waiting, or at exactly one node, from `submit` to `ended` or `withdraw`.
    - A grant goes to a node that is up and has fewer than `max_groups`.
    - After `grants`, the first waiting group that may go anywhere fits nowhere.
    - Home is always up: while home has no group, nothing waits.
    """

    def __init__(self, home: str, *, home_tokens: int, max_groups: int | None = None, fill: float = 1.0) -> None:
        if max_groups is not None and max_groups < 1:
            raise ValueError(f"max_groups = {max_groups}")
        self.home, self._max_groups, self._fill = home, max_groups, fill
        self.nodes = {home: NodeEntry(name=home, total_tokens=home_tokens)}
        self.groups: dict[str, GroupEntry] = {}
        """Every group that has not ended, in the order of submission."""
        self._waiting: dict[str, GroupEntry] = {}
        """Those that are at no node, in the same order."""
        self._num_submitted = 0
        self.lengths = Lengths()

    # ---- nodes ----

    def up(self, name: str, total_tokens: int) -> None:
        node = self.nodes.setdefault(name, NodeEntry(name=name, total_tokens=total_tokens))
        node.is_up, node.total_tokens = True, total_tokens

    def down(self, name: str) -> None:
        """Stop grants to the node; it keeps its groups until the host withdraws them."""
        if name == self.home:
            raise ValueError("home cannot go down")
        self.nodes[name].is_up = False

    def seen(self, name: str, used_tokens: int) -> None:
        self.nodes[name].used_tokens = used_tokens

    # ---- groups ----

    def submit(self, key: str, *, size: int, limit_tokens: int, away: bool = True) -> None:
        if key in self.groups:
            raise ValueError(f"{key!r} has been submitted already")
        number = self._num_submitted
        self._num_submitted += 1
        entry = GroupEntry(key=key, number=number, size=size, limit_tokens=limit_tokens, away=away)
        self.groups[key] = self._waiting[key] = entry

    def ended(self, key: str, tokens: Sequence[int]) -> None:
        """It is done; `tokens` of each of its trajectories."""
        entry = self._at_a_node(key)
        self.lengths.add(entry.limit_tokens, tokens)
        self.withdraw(key)

    def failed(self, key: str, *, home_only: bool = False) -> None:
        """Its node failed it: it waits again, in its old place."""
        entry = self._at_a_node(key)
        self._take_back(entry)
        self._waiting[key] = entry
        self._waiting = dict(sorted(self._waiting.items(), key=lambda item: item[1].number))
        entry.failures += 1
        entry.away = entry.away and not home_only and entry.failures < MAX_AWAY

    def withdraw(self, key: str) -> None:
        """Take back a group that no node needs, wherever it is."""
        self._take_back(self.groups.pop(key))
        self._waiting.pop(key, None)

    def grants(self) -> list[tuple[str, str]]:
        """(group, node), each applied already."""
        made = []
        for entry in list(self._waiting.values()):
            node = self._best(entry)
            if node is not None:
                del self._waiting[entry.key]
                entry.node, node.groups[entry.key] = node.name, entry
                node.sizes[entry.limit_tokens] += entry.size
                made.append((entry.key, node.name))
            elif entry.away:  # groups are of one size: those behind it would fit nowhere either
                break
        return made

    def free_tokens(self, name: str) -> float:
        """Predicted: below 0 where a node has more than will fit."""
        node = self.nodes[name]
        promised = sum(size * self.lengths.mean(limit) for limit, size in node.sizes.items())
        return self._fill * node.total_tokens - max(node.used_tokens, promised)

    def _best(self, entry: GroupEntry) -> NodeEntry | None:
        """The node for a group; of equals the one with the fewest groups, then the first that came up."""
        need = entry.size * self.lengths.mean(entry.limit_tokens)
        fitting = [
            node
            for node in self.nodes.values()
            if node.is_up
            and (self._max_groups is None or len(node.groups) < self._max_groups)
            and (entry.away or node.name == self.home)
            and (not node.groups or need <= self.free_tokens(node.name))
        ]
        return max(fitting, key=lambda node: (self.free_tokens(node.name), -len(node.groups)), default=None)

    def _take_back(self, entry: GroupEntry) -> None:
        if entry.node is not None:
            node = self.nodes[entry.node]
            del node.groups[entry.key]
            node.sizes[entry.limit_tokens] -= entry.size
            entry.node = None

    def _at_a_node(self, key: str) -> GroupEntry:
        entry = self.groups.get(key)
        if entry is None or entry.node is None:
            raise ValueError(f"{key!r} is at no node")
        return entry


class Window:
    """The groups of `size` siblings that may be in flight, of a row that may be a hundred thousand long.

    A full engine holds groups back by itself, but every group in flight is memory of this process.

    Invariant: at least one; otherwise as many as hold `trajectories()`, or, where only KV is known, those of
    which FILL times `kv_tokens()` is full by the mean length so far, which leans on `limit_tokens`.
    """

    def __init__(
        self,
        *,
        size: int,
        trajectories: Callable[[], int] | None = None,
        kv_tokens: Callable[[], int] = lambda: 0,
        limit_tokens: int = 1,
    ) -> None:
        self._size, self._limit_tokens = size, limit_tokens
        self._trajectories, self._kv_tokens = trajectories, kv_tokens
        self._lengths = Lengths()

    @property
    def most(self) -> int:
        """How many, now."""
        if self._trajectories is not None:
            return max(1, math.ceil(self._trajectories() / self._size))
        each = self._size * self._lengths.mean(self._limit_tokens)
        return max(1, math.ceil(FILL * self._kv_tokens() / each))

    def ended(self, group: Group) -> None:
        """One less, and its lengths are known."""
        self._lengths.add(self._limit_tokens, [len(t.ids) for t in group.trajectories])
