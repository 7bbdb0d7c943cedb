"""The sum of each row's readers, interpreted on CPU tensors, against index_add_ in float64.

Run by test_interpreter.py in a process of its own, see check_triton_ops.py.
"""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from rocstar.kernels import rows, triton_rows
from rocstar.kernels.rows import Readers, read_rows, readers_by_row

from ..planted import load_planted

Sum = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
NUM_ROWS = 9


def readers() -> Readers:
    """24 readers: row 0 and the last have none, rows 1 and 2 have several, the others one each."""
    read = np.array([1, 2, 3, 4, 1, 2, 5, 6, 1, 2, 7, 1, 1, 2, 2, 1, 1, 1, 1, 1, 2, 2, 1, 2])
    parts = (read, *readers_by_row(read, NUM_ROWS))
    return Readers(*(torch.from_numpy(x.astype(np.int32)) for x in parts))


def check(sum_readers: Sum, width: int, dtype: torch.dtype) -> None:
    """Sums are rounded once, from float32."""
    found_in = readers()
    generator = torch.Generator().manual_seed(width)
    a, b = (torch.randn(24, width, generator=generator).to(dtype) for _ in range(2))
    found = sum_readers(a, b, found_in.begins_T1, found_in.readers_P)
    for one, grads in zip(found, (a, b), strict=True):
        expected = torch.zeros(NUM_ROWS, width, dtype=torch.float64)
        expected.index_add_(0, found_in.rows_P.long(), grads.double())
        assert one.dtype == dtype and one.shape == expected.shape
        torch.testing.assert_close(one, expected.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)
        alone = [3, 4, 5, 6, 7]
        assert torch.equal(one[alone], grads[[2, 3, 6, 7, 10]]) and not one[[0, 8]].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [16, 80, 1024, 1500])
def test_sums_are_those_of_index_add(width: int, dtype: torch.dtype) -> None:
    check(triton_rows.sum_readers, width, dtype)


def test_the_gradient_of_read_rows_is_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator on CPU tensors, which the interpreter takes."""
    monkeypatch.setattr(rows, "_added", lambda *_: pytest.fail("not the kernel"))
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda _: True))
    x, y = (torch.randn(NUM_ROWS, 2, 8, requires_grad=True) for _ in range(2))
    a, b = read_rows(x, y, readers())
    weight = torch.randn(24, 2, 8)
    found = torch.autograd.grad((a * weight).sum() + (b * 2 * weight).sum(), (x, y))
    expected = torch.zeros(NUM_ROWS, 2, 8).index_add_(0, readers().rows_P.long(), weight)
    torch.testing.assert_close(found, (expected, 2 * expected))


# One error of each kind. The second text takes the place of the first.
PLANTED = {
    "last reader left out": ("tl.load(begins_ptr + row + 1))", "tl.load(begins_ptr + row + 1) - 1)"),
    # In bounds: what lies behind the last reader may be an index far outside of the tensor.
    "reader of another row": ("tl.load(readers_ptr + place)", "tl.load(readers_ptr)"),
    "not added up": ("a += tl.load(a_ptr", "a = tl.load(a_ptr"),
    "one tensor for both": ("b += tl.load(b_ptr", "b += tl.load(a_ptr"),
    "columns of one block": ("tl.program_id(1) * BLOCK + ", ""),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_error_is_caught(kind: str, tmp_path: Path) -> None:
    wrong = load_planted(triton_rows, PLANTED, kind, tmp_path)
    with pytest.raises(AssertionError):
        functools.reduce(lambda _, width: check(wrong.sum_readers, width, torch.float32), (80, 1500), None)
