"""Rows that are read many times, and rows in another order, against plain indexing."""

import pytest
import torch
from torch import Tensor

from rocstar.kernels.rows import gather_rows, pick_rows


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 2, 3)])
def test_values_and_gradients_are_those_of_indexing(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, indexes = leaf(*shape), [torch.randint(0, 7, (4, 5)), torch.tensor([6, 6, 0])]
    found, wanted = gather_rows(x, indexes), [x[index] for index in indexes]
    weights = [torch.randn_like(one) for one in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
    (grad,) = torch.autograd.grad(sum((o * w).sum() for o, w in zip(found, weights, strict=True)), x)
    (expected,) = torch.autograd.grad(sum((o * w).sum() for o, w in zip(wanted, weights, strict=True)), x)
    torch.testing.assert_close(grad, expected)


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
    assert torch.equal(
        torch.autograd.grad((found * weights).sum(), x)[0],
        torch.autograd.grad((x[places] * weights).sum(), x)[0],
    )


def test_rows_of_a_view_are_read_where_they_lie() -> None:
    x = leaf(3, 6, 2)
    (found,) = gather_rows(x.transpose(0, 1), [torch.tensor([[5, 0], [1, 1]])])
    assert torch.equal(found, x.transpose(0, 1)[torch.tensor([[5, 0], [1, 1]])])
    found.sum().backward()
    assert x.grad is not None
    assert x.grad[0, :, 0].tolist() == [1, 2, 0, 0, 0, 1]
