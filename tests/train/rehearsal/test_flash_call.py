"""The learner's attention on a GPU that is not there: one call for all sequences, and what it holds."""

from unittest import mock

import pytest
import torch

from rocstar.kernels import varlen_attention
from rocstar.train.learner.packed_attention import PackedAttention
from rocstar.train.rehearsal.fake_gpu import GPU, fake_gpu, scratch_bytes

H, K, D = 16, 8, 64
OWN, SHARED = 1000, 600


def peak_bytes(shared: int, dtype: torch.dtype) -> int:
    """The most bytes that two sequences hold during forward and backward."""
    with fake_gpu(1) as gpu, gpu.tracker.act("attention"):
        q, k, v = (torch.empty(n, 2 * OWN, D, dtype=dtype, device=GPU, requires_grad=True) for n in (H, K, K))
        attention = PackedAttention([OWN, OWN], GPU, shared_S=[0, shared])
        attention.attend(0, q, k, v, 0.1).backward(torch.empty(2 * OWN, H, D, dtype=dtype, device=GPU))
    return gpu.tracker.peaks[0].total


@pytest.mark.parametrize("shared", [0, SHARED])
def test_half_precision_is_one_call_without_masks_or_repeated_heads(shared: int) -> None:
    with mock.patch.object(varlen_attention, "attend", wraps=varlen_attention.attend) as attend:
        found = peak_bytes(shared, torch.bfloat16)
    ((q, k, v, cum_q, cum_k, longest, _), _) = attend.call_args
    assert attend.call_count == 1 and longest == (OWN, OWN + shared)
    assert q.shape == (2 * OWN, H, D) and k.shape == v.shape == (2 * OWN + shared, K, D)
    assert cum_q.shape == cum_k.shape == (3,)
    with mock.patch.object(varlen_attention, "takes", return_value=False):
        masked = peak_bytes(shared, torch.bfloat16)
    assert found < masked


def test_float32_keeps_the_masked_calls() -> None:
    with mock.patch.object(varlen_attention, "attend") as attend:
        peak_bytes(SHARED, torch.float32)
    assert not attend.called


@pytest.mark.parametrize("heads", [H, K])
def test_what_the_backward_takes_inside(heads: int) -> None:
    """Rows of float32 with 128 between sequences, and keys and values for each query head."""
    q, k = (torch.empty(n, h, D, dtype=torch.bfloat16, device="meta") for n, h in ((50, heads), (70, K)))
    cum = torch.empty(4, dtype=torch.int32, device="meta")
    args = (q, q, k, k, q, q, cum, cum)
    expected = 4 * (50 + 3 * 128) * heads * D + (2 * 2 * 70 * heads * D if heads > K else 0)
    assert scratch_bytes(torch.ops.aten._flash_attention_backward.default, args) == expected
