"""Which library multiplies float32 matrices on a CPU.

torch asks MKL, and MKL leaves half of an AMD core idle: 100 GFLOP/s on an EPYC with Zen 5 cores, and oneDNN,
which torch has too, 225. The switch is torch's permission to multiply in bfloat16 where a CPU gains from
it. CPUs with matrix units (AMX) do, and lose the precision; others keep float32, which is tried out here.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.backends import mkldnn

_settings: Any = mkldnn.matmul  # type: ignore[attr-defined]

EXACT = 1e-5
"""Error over the largest product: float32 has 1e-6 here, bfloat16 has 4e-3."""


@contextlib.contextmanager
def fast_products() -> Iterator[None]:
    """Inside, float32 matrix products take oneDNN where it is the faster one and exact; for large ones.

    The setting is the process's: nobody else may multiply meanwhile and count on its own.
    """
    before = _settings.fp32_precision
    if _is_better():
        _settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        _settings.fp32_precision = before


def are_fast() -> bool:
    """Whether the caller is inside `fast_products`, and it changed something."""
    return _is_better() and bool(_settings.fp32_precision == "bf16")


@functools.cache
def _is_better() -> bool:
    return _is_amd() and torch.backends.mkldnn.is_available() and _is_exact()  # type: ignore[no-untyped-call]


def _is_amd() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.is_file() and "AuthenticAMD" in cpuinfo.read_text(encoding="utf-8", errors="replace")


def _is_exact() -> bool:
    """Whether products stay float32 under the switch: one of each kind, against float64."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(128, 128, generator=generator) for _ in range(2))
    before = _settings.fp32_precision
    _settings.fp32_precision = "bf16"
    try:
        found = [a @ b.T, a.T @ b, torch.addmm(a, a, b), torch.nn.functional.linear(a, b)]
    finally:
        _settings.fp32_precision = before
    wide_a, wide_b = a.double(), b.double()
    expected = [wide_a @ wide_b.T, wide_a.T @ wide_b, wide_a + wide_a @ wide_b, wide_a @ wide_b.T]
    return all(
        float((x.double() - y).abs().max() / y.abs().max()) < EXACT
        for x, y in zip(found, expected, strict=True)
    )
