"""Bytes that live on one device, by category: a storage counts from allocation to release.

    op makes a tensor ─> its storage is booked under the category of the innermost scope
    FSDP empties a storage (resize to 0) or refills it ─> the booking follows
    the storage dies ─> the booking ends

Invariant: the sum over categories equals the allocated bytes of a caching allocator that never splits, in
blocks of BLOCK bytes.
"""

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

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


BLOCK = 512
"""Bytes by which the allocator of CUDA and ROCm rounds up."""


@dataclass(slots=True, eq=False)
class _StorageBooking:
    """One storage. `watch` keeps the weak reference alive, whose callback ends the booking."""

    num_bytes: int
    category: Category
    watch: Any = None


class MemoryTracker:
    """Return the bytes held now, and the peak since `act` began."""

    def __init__(self) -> None:
        self.held = dict.fromkeys(Category, 0)
        """Bytes by category."""
        self.total = 0
        self._bookings: dict[int, _StorageBooking] = {}
        self.scopes = [Category.temporary]
        """The categories of the scopes that are entered; new storages are of the last."""
        self._act = ""
        self._most = 0
        self._at_most = dict(self.held)
        self.peaks: list[MemoryPeak] = []

    @contextlib.contextmanager
    def act(self, name: str) -> Iterator[None]:
        """A part of the rehearsal with a peak of its own, which `peaks` has when it ends."""
        self._act, self._most, self._at_most = name, self.total, dict(self.held)
        yield
        self.peaks.append(MemoryPeak(act=name, by_category=dict(self._at_most), held_after=self.total))

    @contextlib.contextmanager
    def scope(self, category: Category) -> Iterator[None]:
        """Book new storages under that category; the innermost scope wins."""
        self.scopes.append(category)
        try:
            yield
        finally:
            self.scopes.pop()

    # ---- what happens to storages ----

    def made(self, tensor: Tensor) -> None:
        """A tensor came out of an op: book its storage if it is a new one."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._bookings:
            return
        booking = _StorageBooking(0, self.scopes[-1])
        booking.watch = weakref.ref(storage, lambda _: self._end(key))
        self._bookings[key] = booking
        self._set(booking, storage.nbytes())

    def resized(self, storage: torch.UntypedStorage, num_bytes: int) -> None:
        """A storage has another size now. A refilled one is of the scope that refills it."""
        booking = self._bookings.get(storage._cdata)
        if booking is None:
            return
        if not booking.num_bytes:
            booking.category = self.scopes[-1]
        self._set(booking, num_bytes)

    def brief(self, num_bytes: int) -> None:
        """So much was taken and given back within one op."""
        if num_bytes and self.total + num_bytes > self._most:
            self._most = self.total + num_bytes
            self._at_most = {**self.held, Category.temporary: self.held[Category.temporary] + num_bytes}

    def file(self, tensors: Iterable[Tensor], category: Category) -> None:
        """Move the storages of the tensors into another category."""
        for tensor in tensors:
            booking = self._bookings.get(tensor.untyped_storage()._cdata)
            if booking is not None and booking.category is not category:
                self.held[booking.category] -= booking.num_bytes
                self.held[category] += booking.num_bytes
                booking.category = category

    def _end(self, key: int) -> None:
        booking = self._bookings.pop(key, None)
        if booking is not None:
            self._set(booking, 0)

    def _set(self, booking: _StorageBooking, num_bytes: int) -> None:
        rounded = -(-num_bytes // BLOCK) * BLOCK
        change = rounded - booking.num_bytes
        booking.num_bytes = rounded
        self.held[booking.category] += change
        self.total += change
        if self.total > self._most:
            self._most, self._at_most = self.total, dict(self.held)
