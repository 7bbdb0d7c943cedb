"""The launch configurations of the kernels: a static table per architecture, without tuning at run time.

A tuner would run an in-place kernel several times over the same logits, would choose differently on different
ranks, and could not be tested without the device. `benchmarks/gpu/aot.py` compiles every entry of this table.

The entries were chosen from register counts and byte counts of the compiled code; none was timed on a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch

Arch = Literal["gfx942", "gfx950", "sm_90", "fallback", "interpreter"]

MAX_THREADS = 1024  # of a workgroup, on AMD and NVIDIA alike


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """One program per row; each takes `block` columns at a time."""

    block: int
    num_warps: int

    def threads(self, warp_size: int) -> int:
        return self.num_warps * warp_size


# A large vocabulary uses 16 waves with one 16-byte load each.
_CDNA = (
    (8192, LaunchConfig(block=1024, num_warps=2)),
    (65536, LaunchConfig(block=4096, num_warps=8)),
    (float("inf"), LaunchConfig(block=8192, num_warps=16)),
)
_OTHERS = (
    LaunchConfig(block=2048, num_warps=4),
    LaunchConfig(block=4096, num_warps=4),
    LaunchConfig(block=8192, num_warps=8),
)

# (largest vocabulary, config), in order. A wave of gfx942 or gfx950 has 64 lanes, a warp of sm_90 has 32.
TABLE: dict[Arch, tuple[tuple[float, LaunchConfig], ...]] = {
    "gfx942": _CDNA,
    "gfx950": _CDNA,
    "sm_90": ((8192, LaunchConfig(block=1024, num_warps=4)), (float("inf"), LaunchConfig(block=4096, num_warps=8))),
    "fallback": ((float("inf"), LaunchConfig(block=2048, num_warps=4)),),
    # The interpreter pays per instruction, not per column.
    "interpreter": ((float("inf"), LaunchConfig(block=1024, num_warps=1)),),
}

# Configurations that a benchmark on a device tries besides the table; all compile without spills.
CANDIDATES: dict[Arch, tuple[LaunchConfig, ...]] = {
    "gfx942": _OTHERS,
    "gfx950": _OTHERS,
    "sm_90": _OTHERS,
    "fallback": (),
    "interpreter": (),
}


def launch_config(arch: Arch, vocabulary: int) -> LaunchConfig:
    """Return the table's entry for a row of `vocabulary` columns."""
    return next(config for largest, config in TABLE[arch] if vocabulary <= largest)


def arch_of(device: torch.device) -> Arch:
    """Return the architecture of a torch device, or `fallback` if the table does not have it."""
    if device.type != "cuda":
        return "interpreter"
    if torch.version.hip:
        name = str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]
        return cast(Arch, name) if name in ("gfx942", "gfx950") else "fallback"
    return "sm_90" if torch.cuda.get_device_capability(device) == (9, 0) else "fallback"
