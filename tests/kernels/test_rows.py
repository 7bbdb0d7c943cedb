"""Rows that are read many times, and rows in another order, against plain indexing."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from rocstar.kernels.rows import Readers, gather_rows, pick_rows, place_rows, read_rows, readers_by_row


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def grads(outs: Sequence[Tensor], weights: Sequence[Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(outs, inputs, weights)


@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 2, 3)])
def test_values_and_gradients_are_those_of_indexing(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, indexes = leaf(*shape), [torch.randint(0, 7, (4, 5)), torch.tensor([6, 6, 0])]
    found, wanted = gather_rows(x, indexes), [x[index] for index in indexes]
    weights = [torch.randn_like(one) for one in wanted]
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    torch.testing.assert_close(grads(found, weights, x), grads(wanted, weights, x))


def test_a_reader_whose_rows_have_no_gradient_adds_nothing() -> None:
    x = leaf(4, 2)
    first, _ = gather_rows(x, [torch.tensor([1, 1]), torch.tensor([0, 3])])
    (grad,) = torch.autograd.grad(first.sum(), x)
    assert grad.tolist() == [[0, 0], [2, 2], [0, 0], [0, 0]]


def test_rows_in_another_order() -> None:
    x, places = leaf(5, 2), torch.tensor([4, 0, 2])
    found = pick_rows(x, places)
    assert torch.equal(found, x[places])
    weights = torch.randn_like(found)
    assert torch.equal(*grads([found], [weights], x), *grads([x[places]], [weights], x))


def test_rows_of_a_view_are_read_where_they_lie() -> None:
    x = leaf(3, 6, 2)
    (found,) = gather_rows(x.transpose(0, 1), [torch.tensor([[5, 0], [1, 1]])])
    assert torch.equal(found, x.transpose(0, 1)[torch.tensor([[5, 0], [1, 1]])])
    found.sum().backward()
    assert x.grad is not None
    assert x.grad[0, :, 0].tolist() == [1, 2, 0, 0, 0, 1]


def test_placed_rows_are_zeros_elsewhere() -> None:
    x, places = leaf(2, 3), torch.tensor([4, 1])
    placed = place_rows(x, places, 5)
    assert torch.equal(placed[places], x) and not placed[[0, 2, 3]].any()
    weights = torch.randn_like(placed)
    assert torch.equal(*grads([placed], [weights], x), weights[places])


def readers_of(rows: list[int], num_rows: int) -> Readers:
    parts = (np.array(rows), *readers_by_row(np.array(rows), num_rows))
    return Readers(*(torch.from_numpy(x.astype(np.int32)) for x in parts))


def test_each_row_has_its_readers_in_order() -> None:
    """Row 1 has none, and row 3, the last, neither."""
    readers = readers_of([2, 0, 2, 0, 0], 4)
    assert readers.begins_T1.tolist() == [0, 3, 3, 5, 5]
    assert readers.readers_P.tolist() == [1, 3, 4, 0, 2]


def test_readers_of_two_tensors_have_the_values_and_gradients_of_indexing() -> None:
    torch.manual_seed(0)
    a, b, rows = leaf(2, 6, 3).transpose(0, 1), leaf(6, 2, 3), [5, 0, 0, 3, 5, 0]
    found, wanted = read_rows(a, b, readers_of(rows, 6)), (a[rows], b[rows])
    weights = [torch.randn_like(one) for one in wanted]
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    torch.testing.assert_close(grads(found, weights, a, b), grads(wanted, weights, a, b))


def test_half_precision_is_added_up_in_float32() -> None:
    """Added one by one, the ones would be lost beside 256."""
    a = torch.zeros(1, 1, dtype=torch.bfloat16, requires_grad=True)
    found, _ = read_rows(a, a.detach(), readers_of([0] * 9, 1))
    found.backward(torch.tensor([256.0, *[1.0] * 8], dtype=torch.bfloat16)[:, None])
    assert a.grad is not None and a.grad.item() == 264
