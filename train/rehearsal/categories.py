"""Categories of GPU memory, and the peak of each. Pure, stdlib only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

GIB = 1 << 30


class Category(StrEnum):
    """The purpose of a block of memory."""

    parameters = "parameters"  # this rank's part, float32
    gradients = "gradients"  # this rank's part, summed over ranks
    moments = "moments"  # of the optimizer
    activations = "activations"  # tensors of the forward pass, kept for backward or not
    gathers = "gathers"  # whole weights of an FSDP unit, and what its collectives need
    head = "head"  # logits of a chunk, and the gradients that the loss makes
    temporary = "temporary"  # of backward and of the optimizer
    engine = "engine"  # an embedded engine's copy of the weights, its KV and the tensors of its step


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """The most that was held at one time during an act, and for what. Bytes."""

    act: str
    by_category: Mapping[Category, int]
    held_after: int = 0
    """The bytes still held at the end of the act."""

    @property
    def total(self) -> int:
        return sum(self.by_category.values())

    def gib(self) -> dict[str, float]:
        """GiB by category, those that hold something."""
        return {str(c): round(n / GIB, 3) for c, n in self.by_category.items() if n}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """The memory of the embedded engines of a rank, in bytes."""

    weights: int
    """The copy of the weights that they decode with; 0 if they share the learner's."""
    kv: int
    """Keys and values of all rows at their longest."""
    workspace: int
    """The most that one forward and its sampling make; engines run in turns."""
    rows: int
    """Rows of each engine."""
    tokens: int
    """Tokens of the longest row, prompt included."""

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.workspace


def highest(peaks: list[MemoryPeak]) -> MemoryPeak:
    """The act that needs most; ValueError for none."""
    return max(peaks, key=lambda peak: peak.total)
