"""The KV pool of one replica, in tokens.

A trajectory owns the tokens after its prompt; siblings share those of the prompt. While a trajectory
runs, both are locked. Between its turns they stay and can be evicted, the least recently used first and a
trajectory's own tokens before its prompt (SGLang's radix tree; a trajectory is one leaf here).

Invariant: free + everything held = the pool; free >= 0; nothing locked is in the eviction order.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Prompt:
    """A group's prompt on one replica. `refs` counts the trajectories whose KV follows it."""

    tokens: int
    refs: int = 0
    resident: bool = False
    stamp: int = 0


@dataclass(slots=True, eq=False)
class Hold:
    """The KV of one trajectory in one pool: `own` tokens after its prompt. `locked` while it runs."""

    prompt: Prompt
    own: int = 0
    locked: bool = False
    refers: bool = False
    """It counts in prompt.refs."""
    stamp: int = 0


@dataclass(slots=True)
class KvPool:
    tokens: int
    keep_prompts: bool = True
    """A prompt without references stays until its space is needed."""
    free: int = field(init=False)
    evictable: int = field(init=False, default=0)
    evicted_tokens: int = field(init=False, default=0)
    _order: list[tuple[float, int, Prompt | Hold]] = field(init=False, default_factory=list)
    _stamp: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.free = self.tokens

    @property
    def used(self) -> int:
        return self.tokens - self.free

    def cached(self, hold: Hold) -> int:
        """Tokens of this trajectory, from its first one on, that are here."""
        return hold.own + (hold.prompt.tokens if hold.prompt.resident else 0)

    def available(self, hold: Hold) -> int:
        """Free tokens and those that could be evicted without touching what `hold` can reuse."""
        spare = self.free + self.evictable
        if not hold.locked:
            spare -= hold.own
        if hold.prompt.resident and not hold.prompt.refs:
            spare -= hold.prompt.tokens
        return spare

    def lock(self, hold: Hold) -> None:
        """It runs from now on: neither its tokens nor its prompt can be evicted."""
        self.evictable -= hold.own
        hold.locked, hold.stamp = True, 0
        if not hold.refers:
            prompt = hold.prompt
            if not prompt.refs and prompt.resident:
                self.evictable -= prompt.tokens
                prompt.stamp = 0
            prompt.refs += 1
            hold.refers = True

    def unlock(self, hold: Hold, accessed_s: float) -> None:
        """Its tokens stay until the room is needed."""
        hold.locked = False
        if hold.own:
            self.evictable += hold.own
            self._stamp += 1
            hold.stamp = self._stamp
            heapq.heappush(self._order, (accessed_s, self._stamp, hold))
        else:
            self._unrefer(hold, accessed_s)

    def _unrefer(self, hold: Hold, accessed_s: float) -> None:
        if hold.refers:
            hold.refers = False
            prompt = hold.prompt
            prompt.refs -= 1
            if not prompt.refs and prompt.resident and not self.keep_prompts:
                prompt.resident = False
                self.free += prompt.tokens
            elif not prompt.refs and prompt.resident:
                self.evictable += prompt.tokens
                self._stamp += 1
                prompt.stamp = self._stamp
                heapq.heappush(self._order, (accessed_s, self._stamp, prompt))

    def take(self, hold: Hold, total: int) -> int:
        """Room for a locked trajectory to hold `total` tokens, prompt included; returns those missing."""
        missing = total - self.cached(hold)
        self.make_room(missing)
        self.free -= missing
        if not hold.prompt.resident:
            hold.prompt.resident = True
        hold.own = total - hold.prompt.tokens
        return missing

    def make_room(self, tokens: int) -> bool:
        """Evict until `tokens` are free, or nothing is left to evict. True if they are."""
        while self.free < tokens and self._order:
            accessed_s, stamp, item = heapq.heappop(self._order)
            if item.stamp != stamp:
                continue
            item.stamp = 0
            if isinstance(item, Hold):
                freed, item.own = item.own, 0
                self.evictable -= freed
                self._unrefer(item, accessed_s)
            else:
                freed, item.resident = item.tokens, False
                self.evictable -= freed
            self.free += freed
            self.evicted_tokens += freed
        return self.free >= tokens

    def release(self, hold: Hold, accessed_s: float) -> None:
        """Free the trajectory's own tokens; the prompt stays until its space is needed."""
        if not hold.locked:
            self.evictable -= hold.own
        self.free += hold.own
        hold.own, hold.locked, hold.stamp = 0, False, 0
        self._unrefer(hold, accessed_s)

    def forget(self, prompt: Prompt) -> None:
        """Its group is done: the prompt is of no use any more."""
        assert not prompt.refs
        if prompt.resident:
            self.free += prompt.tokens
            self.evictable -= prompt.tokens
            prompt.resident, prompt.stamp = False, 0
