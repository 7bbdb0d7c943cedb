"""Release the learner's device memory for another user of the device."""

import gc
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from rocstar.train.learner.adapters import send_frozen
from rocstar.train.learner.optim import Optimizers, bytes_here


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedMemory:
    """The bytes that one rank released."""

    gradients: int
    moments: int
    """Bytes of the optimizer, now in CPU memory."""
    held: int
    """Bytes that the device's allocator still holds for this process; 0 on a CPU."""
    frozen: int = 0
    """Bytes of frozen weights, now in CPU memory."""

    def metrics(self) -> dict[str, float]:
        return {
            "memory/freed_gradients": float(self.gradients),
            "memory/freed_moments": float(self.moments),
            "memory/freed_frozen": float(self.frozen),
            "memory/held": float(self.held),
        }


def release_memory(
    optimizers: Optimizers | None, device: torch.device, *, moments: bool, frozen: Iterable[nn.Parameter] = ()
) -> ReleasedMemory:
    """Drop the gradients, move the moments (if requested) and the frozen weights of `frozen` to CPU memory,
    and empty the allocator's cache.

    The next update makes new gradients and moves the rest back.
    """
    found = moved = held = 0
    away = send_frozen(frozen, torch.device("cpu"))
    if optimizers is not None:
        found = sum(bytes_here(p.grad) for p in optimizers.parameters() if p.grad is not None)
        optimizers.zero_grad()
        if moments:
            moved = optimizers.send_moments(torch.device("cpu"))
    if device.type == "cuda":
        gc.collect()  # a reference cycle may hold tensors of a traceback or a hook
        torch.cuda.empty_cache()
        held = torch.cuda.memory_reserved(device)
    return ReleasedMemory(gradients=found, moments=moved, held=held, frozen=away)
