"""The library that multiplies float32 matrices on a CPU.

torch uses MKL, which leaves half of an AMD core idle: 100 GFLOP/s on an EPYC with Zen 5 cores, where oneDNN,
which torch also has, reaches 225. The switch to oneDNN is torch's permission to multiply in bfloat16. CPUs
with matrix units (AMX) use it and lose precision; others keep float32, which this module verifies.
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
"""The maximum error relative to the largest product: about 1e-6 for float32, 4e-3 for bfloat16."""


@contextlib.contextmanager
def fast_products() -> Iterator[None]:
    """Multiply large float32 matrices with oneDNN inside the context, if it is faster and exact on this CPU.

    The setting is process-wide: no other thread may rely on its own setting meanwhile.
    """
    before = _settings.fp32_precision
    if _is_better():
        _settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        _settings.fp32_precision = before


def are_fast() -> bool:
    """Return True inside `fast_products` if it changed the setting."""
    return _is_better() and bool(_settings.fp32_precision == "bf16")


@functools.cache
def _is_better() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    is_amd = cpuinfo.is_file() and "AuthenticAMD" in cpuinfo.read_text(encoding="utf-8", errors="replace")
    return is_amd and torch.backends.mkldnn.is_available() and _is_exact()  # type: ignore[no-untyped-call]


def _is_exact() -> bool:
    """Return True if products stay float32 with the switch: compare one of each kind with float64."""
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
        float((x.double() - y).abs().max() / y.abs().max()) < EXACT for x, y in zip(found, expected, strict=True)
    )
