"""How many rows of logits a device takes at a time."""

from typing import Any

import pytest
import torch

from rocstar.kernels.chunks import LEAST_ROWS, MOST_ROWS, STEP, free_bytes, rows_per_chunk

GIB = 1 << 30
HEAD: dict[str, Any] = {
    "vocabulary": 151_936,
    "hidden": 5120,
    "dtype": torch.bfloat16,
    "head_dtype": torch.bfloat16,
    "grad": True,
}
"""The head of a 14B model."""


def needed(rows: int, chunk: int, *, head_dtype: torch.dtype = torch.bfloat16) -> int:
    """Bytes of logits, of the gradients, and of the float32 sum where there are several chunks."""
    row = 151_936 * (2 if head_dtype == torch.bfloat16 else 6)
    several = 4 * 151_936 * 5120 if chunk < rows else 0
    return min(chunk, rows) * row + 2 * (rows + 151_936) * 5120 + several


@pytest.mark.parametrize("head_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("free_gib", [8, 12, 20, 40, 76, 140, 190])
@pytest.mark.parametrize("rows", [1, 300, 4096, 16_384, 20_480, 65_000])
def test_it_fits_in_few_even_chunks(rows: int, free_gib: int, head_dtype: torch.dtype) -> None:
    chunk = rows_per_chunk(free_gib * GIB, rows, **(HEAD | {"head_dtype": head_dtype}))
    chunks = -(-rows // chunk)
    assert chunk % STEP == 0 and LEAST_ROWS <= chunk <= MOST_ROWS
    assert chunk == LEAST_ROWS or needed(rows, chunk, head_dtype=head_dtype) < free_gib * GIB
    assert chunks * chunk < rows + chunks * STEP, "even"
    if chunk > LEAST_ROWS:  # one chunk less would take more than half of what is free, or than the bound
        more = 2 * -(-rows // max(1, chunks - 1))
        assert chunks == 1 or more > MOST_ROWS or needed(rows, more, head_dtype=head_dtype) > free_gib * GIB / 2


def test_known_devices() -> None:
    """20,480 rows of a 14B head: one chunk where 60 GiB are free, small ones where nearly nothing is."""
    assert rows_per_chunk(60 * GIB, 20_480, **HEAD) == 20_480
    assert rows_per_chunk(16 * GIB, 20_480, **HEAD) == 10_240
    assert rows_per_chunk(8 * GIB, 20_480, **HEAD) == 4096
    assert rows_per_chunk(0, 20_480, **HEAD) == rows_per_chunk(-GIB, 20_480, **HEAD) == LEAST_ROWS
    assert rows_per_chunk(60 * GIB, 0, **HEAD) == STEP


def test_a_little_less_memory_gives_the_same_chunks() -> None:
    """Sums over chunks, and so the last bits of a gradient, depend on them."""
    found = {rows_per_chunk(int(free * GIB), 20_480, **HEAD) for free in (40, 40.5, 41, 41.5, 42)}
    assert len(found) == 1


def test_log_probs_alone_need_less() -> None:
    alone = HEAD | {"grad": False, "head_dtype": torch.float32}
    assert rows_per_chunk(10 * GIB, 8192, **alone) > rows_per_chunk(10 * GIB, 8192, **(alone | {"grad": True}))


def test_what_the_allocator_holds_and_does_not_use_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10, 80))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 50)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 30)
    assert free_bytes(torch.device("cuda", 0)) == 30
