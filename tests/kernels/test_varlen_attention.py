"""The call of torch's flash kernel without a GPU: who takes it, its arguments and its gradients."""

from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from rocstar.kernels import varlen_attention


@pytest.mark.parametrize(
    ("dtype", "size", "device", "hip", "taken"),
    [
        (torch.bfloat16, 128, "cuda", None, True),
        (torch.float16, 256, "cuda", None, True),
        (torch.float32, 128, "cuda", None, False),
        (torch.bfloat16, 260, "cuda", None, False),
        (torch.bfloat16, 264, "cuda", None, False),
        (torch.bfloat16, 100, "cuda", None, False),
        (torch.bfloat16, 128, "cuda", "7.2", False),
        (torch.bfloat16, 128, "cpu", None, False),
    ],
)
def test_half_precision_on_an_nvidia_gpu_takes_it(
    dtype: torch.dtype, size: int, device: str, hip: str | None, taken: bool
) -> None:
    with FakeTensorMode():
        q = torch.empty(2, 3, size, dtype=dtype, device=device)
    with (
        mock.patch.object(varlen_attention, "_has_kernel", return_value=True),
        mock.patch.object(torch.version, "hip", hip),
    ):
        assert varlen_attention.takes(q) is taken


class Calls(TorchDispatchMode):
    """The arguments of each call of the flash kernel, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.forward: list[tuple[Any, ...]] = []
        self.backward: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._flash_attention_forward.default:
            self.forward.append((*args, kwargs))
        if func is torch.ops.aten._flash_attention_backward.default:
            self.backward.append((*args, kwargs))
        return func(*args, **(kwargs or {}))


def inputs() -> tuple[list[Tensor], Tensor, Tensor]:
    """Queries, keys and values of two sequences, and the ends of both; tensors without numbers."""
    shapes = [(10, 4, 64), (16, 2, 64), (16, 2, 64)]
    qkv = [torch.empty(s, device="meta", dtype=torch.bfloat16, requires_grad=True) for s in shapes]
    cum = torch.empty(3, device="meta", dtype=torch.int32)
    return qkv, cum, cum.clone()


@pytest.mark.parametrize("is_kept", [True, False], ids=["activations kept", "run again"])
def test_torch_knows_its_gradient(is_kept: bool) -> None:
    """The operator has no kernel for a CPU; the derivative and shapes are the ones of a GPU."""
    qkv, cum_q, cum_k = inputs()

    def attend(*qkv: Tensor) -> Tensor:
        return varlen_attention.attend(*qkv, cum_q, cum_k, (7, 9), 0.5)

    with Calls() as calls:
        out: Any = attend(*qkv) if is_kept else checkpoint(attend, *qkv, use_reentrant=False)
        out.sum().backward()
    assert out.shape == (10, 4, 64) and [x.grad is not None and x.grad.shape for x in qkv] == [x.shape for x in qkv]
    assert len(calls.forward) == 2 - is_kept and len(calls.backward) == 1
    assert calls.forward[0][5:10] == (7, 9, 0.0, True, False)
    assert calls.forward[0][-1]["scale"] == calls.backward[0][-1]["scale"] == 0.5
    assert calls.forward[0][3] is cum_q and calls.forward[0][4] is cum_k


def test_one_query_per_sequence_takes_the_same_kernel() -> None:
    """A bound of one would be the kernel of decoding."""
    qkv, cum_q, cum_k = inputs()
    with Calls() as calls:
        varlen_attention.attend(*qkv, cum_q, cum_k, (1, 9), 0.5)
    assert calls.forward[0][5] == 2
