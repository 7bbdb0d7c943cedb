"""Packed attention is attention within each sequence, whatever beginnings they share, gradients included."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rocstar.kernels import varlen_attention
from rocstar.train.learner import packed_attention
from rocstar.train.learner.packed_attention import PackedAttention

CPU = torch.device("cpu")
H, K, D = 4, 2, 8
Packing = tuple[list[int], list[int]]


@st.composite
def packings(draw: st.DrawFn) -> Packing:
    """Own tokens and shared ones of each sequence; at most one sequence asks nothing of its own."""
    lengths, shared, path = [], [], 0
    for _ in range(draw(st.integers(1, 7))):
        common = draw(st.integers(0, path))
        own = draw(st.integers(0 if common else 1, 40))
        lengths.append(own)
        shared.append(common)
        path = common + own
    return lengths, shared


def paths_of(lengths_S: list[int], shared_S: list[int]) -> list[list[int]]:
    paths: list[list[int]] = []
    start, before = 0, list[int]()
    for own, common in zip(lengths_S, shared_S, strict=True):
        before = [*before[:common], *range(start, start + own)]
        start += own
        paths.append(before)
    return paths


def by_definition(q_HTD: Tensor, k_KTD: Tensor, v_KTD: Tensor, paths: list[list[int]]) -> Tensor:
    """Each token's softmax over the tokens before it on its path, written out: out_THD."""
    outs: dict[int, Tensor] = {}
    for path in paths:
        for end, token in enumerate(path, 1):
            k, v = (x[:, path[:end]].repeat_interleave(H // K, dim=0) for x in (k_KTD, v_KTD))
            weights = ((k @ q_HTD[:, token, :, None])[..., 0] * 0.3).softmax(-1)
            outs[token] = (weights[..., None] * v).sum(1)
    return torch.stack([outs[token] for token in sorted(outs)])


def leaves(num_tokens: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(H, num_tokens, D), (K, num_tokens, D), (K, num_tokens, D)]
    return [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]


@settings(max_examples=25, deadline=None)
@given(packing=packings(), seed=st.integers(0, 99), data=st.data())
def test_a_token_sees_itself_and_what_lies_before_it_on_its_path(
    packing: Packing, seed: int, data: st.DataObject
) -> None:
    lengths_S, shared_S = packing
    total = sum(lengths_S)
    mine, plain = leaves(total, seed), leaves(total, seed)
    kept = sorted(data.draw(st.sets(st.integers(0, total - 1), min_size=1)))
    attention = PackedAttention(lengths_S, CPU, shared_S=shared_S, kept_R=torch.tensor(kept))
    q, k, v = mine
    out = attention.attend(0, q, k, v, 0.3)
    some = attention.attend_kept(q[:, kept], k, v, 0.3)
    expected = by_definition(*plain, paths_of(lengths_S, shared_S))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(some, expected[kept])
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = torch.autograd.grad((out * weight).sum() + (some * weight[kept]).sum(), mine)
    right = torch.autograd.grad((expected * weight).sum() + (expected[kept] * weight[kept]).sum(), plain)
    torch.testing.assert_close(found, right)


@settings(max_examples=10, deadline=None)
@given(kept=st.sets(st.integers(0, 45), min_size=1))
def test_long_sequences_are_asked_for_the_kept_tokens_without_a_mask(kept: set[int]) -> None:
    """Where a mask would be large; a sequence that shares needs one anyway."""
    lengths_S, shared_S, chosen = [20, 9, 17], [0, 5, 0], sorted(kept)
    mine, plain = leaves(46, 3), leaves(46, 3)
    attention = PackedAttention(lengths_S, CPU, shared_S=shared_S, kept_R=torch.tensor(chosen))
    q, k, v = mine
    with mock.patch.object(packed_attention, "MAX_MASK", 0):
        some = attention.attend_kept(q[:, chosen], k, v, 0.3)
    masks = [call._mask_S1QL for call in attention._kept._calls]
    shares = any(20 <= token < 29 for token in chosen)
    assert sum(mask is not None for mask in masks) == shares
    expected = by_definition(*plain, paths_of(lengths_S, shared_S))[chosen]
    torch.testing.assert_close(some, expected)
    weight = torch.randn(some.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = torch.autograd.grad((some * weight).sum(), mine)
    torch.testing.assert_close(found, torch.autograd.grad((expected * weight).sum(), plain))


def by_sequence(
    q_NHD: Tensor,
    k_PKD: Tensor,
    v_PKD: Tensor,
    cum_q_S1: Tensor,
    cum_k_S1: Tensor,
    longest: tuple[int, int],
    scale: float,
) -> Tensor:
    """`varlen_attention.attend` in plain torch: a causal mask aligned to the last query and the last key."""
    lengths_q, lengths_k = cum_q_S1.diff().tolist(), cum_k_S1.diff().tolist()
    assert longest == (max(lengths_q), max(lengths_k)) and min(lengths_q) > 0
    assert (len(q_NHD), len(k_PKD)) == (cum_q_S1[-1], cum_k_S1[-1]) and cum_q_S1.dtype == torch.int32
    outs = []
    for q, k, v in zip(q_NHD.split(lengths_q), k_PKD.split(lengths_k), v_PKD.split(lengths_k), strict=True):
        sees_QL = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        k, v = (x.repeat_interleave(H // K, dim=1) for x in (k, v))
        scores_HQL = torch.einsum("qhd,lhd->hql", q, k) * scale
        weights_HQL = scores_HQL.masked_fill(~sees_QL, -math.inf).softmax(-1)
        outs.append(torch.einsum("hql,lhd->qhd", weights_HQL, v))
    return torch.cat(outs)


@contextlib.contextmanager
def one_call() -> Iterator[mock.Mock]:
    """Inside, the CPU takes the path of a GPU, with `by_sequence` in the place of the flash kernel."""
    with (
        mock.patch.object(varlen_attention, "takes", return_value=True),
        mock.patch.object(varlen_attention, "attend", side_effect=by_sequence) as attend,
    ):
        yield attend


def both_layers(packing: Packing, kept: list[int], seed: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Outputs of `attend` and `attend_kept`, and the gradients of q, k, v for random ones of both outputs."""
    lengths_S, shared_S = packing
    inputs = leaves(sum(lengths_S), seed)
    attention = PackedAttention(lengths_S, CPU, shared_S=shared_S, kept_R=torch.tensor(kept))
    q, k, v = inputs
    out, some = attention.attend(0, q, k, v, 0.3), attention.attend_kept(q[:, kept], k, v, 0.3)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return out, some, list(torch.autograd.grad((out * weight).sum() + (some * weight[kept]).sum(), inputs))


def assert_one_call_is_the_masked_calls(packing: Packing, kept: list[int], seed: int = 0) -> None:
    """Values and gradients."""
    masked = both_layers(packing, kept, seed)
    with one_call() as attend:
        found = both_layers(packing, kept, seed)
    assert attend.call_count == 2, "one of each layer"
    torch.testing.assert_close(found, masked)


@settings(max_examples=60, deadline=None)
@given(packing=packings(), seed=st.integers(0, 99), data=st.data())
def test_one_call_without_masks_is_the_masked_calls(packing: Packing, seed: int, data: st.DataObject) -> None:
    total = sum(packing[0])
    kept = sorted(data.draw(st.sets(st.integers(0, total - 1), min_size=1)))
    assert_one_call_is_the_masked_calls(packing, kept, seed)


@pytest.mark.parametrize(
    ("lengths", "shared", "kept"),
    [
        pytest.param([5, 1, 4], [0, 0, 0], [0, 3, 9], id="no sharing"),
        pytest.param([1, 1, 1], [0, 0, 0], [0, 1, 2], id="one token"),
        pytest.param([1, 1, 1], [0, 1, 1], [2], id="one own token"),
        pytest.param([6, 3, 3, 3], [0, 6, 6, 6], [5, 6, 8, 9, 14], id="siblings"),
        pytest.param([6, 0, 3, 0, 2], [0, 4, 4, 7, 3], [7, 8, 10], id="own = 0"),
        pytest.param([4, 7], [0, 2], list(range(11)), id="all kept"),
        pytest.param([4, 7], [0, 2], [4], id="one kept"),
        pytest.param([4, 7], [0, 2], list(range(4, 11)), id="a row kept"),
    ],
)
def test_one_call_of_chosen_packings(lengths: list[int], shared: list[int], kept: list[int]) -> None:
    assert_one_call_is_the_masked_calls((lengths, shared), kept)


def test_rows_are_copied_only_where_they_must_be() -> None:
    """No copy of keys without sharing, and none of queries where all kept ones are at the end."""
    lengths_S, kept = [4, 3], [2, 3, 5, 6]
    q, k, v = (x.detach() for x in leaves(7, 0))
    attention = PackedAttention(lengths_S, CPU, kept_R=torch.tensor(kept))
    with one_call() as attend:
        attention.attend(0, q, k, v, 0.3)
        attention.attend_kept(q[:, kept].clone(), k, v, 0.3)
    for call in attend.call_args_list:
        assert call.args[1].data_ptr() == k.data_ptr() and call.args[2].data_ptr() == v.data_ptr()
    assert attend.call_args_list[0].args[0].data_ptr() == q.data_ptr()
    assert len(attend.call_args_list[1].args[0]) == 4


def test_index_tensors_are_moved_once() -> None:
    moves = []

    class Moves(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten._to_copy.default and (kwargs or {}).get("device"):
                moves.append(kwargs["device"].type)
            return func(*args, **(kwargs or {}))

    attention = PackedAttention([4, 3], torch.device("meta"), shared_S=[0, 2], kept_R=torch.tensor([1, 3, 5]))
    q, k, v = (torch.empty(heads, 7, D, device="meta") for heads in (H, K, K))
    with mock.patch.object(varlen_attention, "takes", return_value=True), Moves():
        for _ in range(3):
            assert attention.attend(0, q, k, v, 0.3).shape == (7, H, D)
        assert attention.attend_kept(q[:, :3], k, v, 0.3).shape == (3, H, D)
    assert moves == ["meta"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [64, 128])
def test_the_flash_kernel_is_the_masked_calls_on_a_gpu(dtype: torch.dtype, size: int) -> None:
    """In float32 of the same numbers. Most sequences are longer than a tile of the kernel."""
    lengths_S, shared_S = [300, 250, 1, 190, 70], [0, 120, 120, 33, 0]
    kept = [t for t in range(sum(lengths_S)) if t % 7 and not 250 < t < 400]
    gpu, total = torch.device("cuda"), sum(lengths_S)
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, total, size), (2, total, size), (2, total, size), (total, 4, size)]
    numbers = [torch.randn(shape, generator=generator).to(gpu, dtype) for shape in shapes]

    def results(kind: torch.dtype) -> list[Tensor]:
        *inputs, weight = (x.to(kind) for x in numbers)
        q, k, v = (x.detach().requires_grad_() for x in inputs)
        assert varlen_attention.takes(q) == (kind is not torch.float32)
        attention = PackedAttention(lengths_S, gpu, shared_S=shared_S, kept_R=torch.tensor(kept))
        out = attention.attend(0, q, k, v, size**-0.5)
        some = attention.attend_kept(q[:, kept], k, v, size**-0.5)
        loss = (out * weight).float().sum() + (some * weight[kept]).float().sum()
        return [out, some, *torch.autograd.grad(loss, [q, k, v])]

    for found, expected in zip(results(dtype), results(torch.float32), strict=True):
        assert (found.float() - expected).norm() < 0.02 * expected.norm()


@pytest.mark.parametrize(
    ("lengths", "shared"),
    [([], []), ([3, 0], [0, 0]), ([-1], [0]), ([3, 2], [0, 4]), ([3, 2], [1, 0]), ([3, 2], [0, -1])],
)
def test_what_is_no_packing_is_refused(lengths: list[int], shared: list[int]) -> None:
    with pytest.raises(ValueError, match="every sequence needs a token"):
        PackedAttention(lengths, CPU, shared_S=shared)


@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 300)), min_size=1, max_size=40))
def test_padding_is_a_small_part_and_calls_are_few(sizes: list[tuple[int, int]]) -> None:
    """Of what is computed, at most a tenth and a constant is padding; the first shares nothing."""
    lengths_S = [own for own, _ in sizes]
    shared_S, path = [], 0
    for own, common in sizes:
        shared_S.append(min(common, path))
        path = shared_S[-1] + own
    parts = packed_attention._parts(lengths_S, shared_S)
    buckets = packed_attention._buckets(parts)
    assert sorted(int(p.rows[0]) for bucket in buckets for p in bucket) == sorted(int(p.rows[0]) for p in parts)
    for bucket in buckets:
        real = sum(p.num_scores for p in bucket)
        computed = len(bucket) * max(len(p.rows) for p in bucket) * max(len(p.path) for p in bucket)
        assert computed - real <= max(packed_attention.PADDING, packed_attention.PADDED_SHARE * real)


def test_equal_siblings_are_two_calls() -> None:
    """One for the prompt's owner, one for the others."""
    parts = packed_attention._parts([127] + [95] * 31, [0] + [32] * 31)
    assert [len(bucket) for bucket in packed_attention._buckets(parts)] == [1, 31]


def test_the_cost_of_sequences_is_the_sum_of_squares() -> None:
    """Not the square of the sum: what another sequence holds is never touched."""
    attention = PackedAttention([4, 3], CPU)
    q, k, v = (x.detach() for x in leaves(7, 0))
    before = attention.attend(0, q, k, v, 0.3)
    k[:, 4:] = math.nan
    assert torch.equal(attention.attend(0, q, k, v, 0.3)[:4], before[:4])
