"""Packed attention is attention within each sequence, whatever beginnings they share, gradients included."""

import math
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rocstar.train.learner import packed_attention
from rocstar.train.learner.packed_attention import PackedAttention

torch.set_num_threads(1)

CPU = torch.device("cpu")
H, K, D = 4, 2, 8


@st.composite
def packings(draw: st.DrawFn) -> tuple[list[int], list[int]]:
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
    packing: tuple[list[int], list[int]], seed: int, data: st.DataObject
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
    ((out * weight).sum() + (some * weight[kept]).sum()).backward()
    ((expected * weight).sum() + (expected[kept] * weight[kept]).sum()).backward()
    for one, other in zip(mine, plain, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@settings(max_examples=10, deadline=None)
@given(kept=st.sets(st.integers(0, 45), min_size=1))
def test_long_sequences_are_asked_for_the_kept_tokens_without_a_mask(kept: set[int]) -> None:
    """Where a mask would be large; a sequence that shares needs one anyway."""
    lengths_S, shared_S, chosen = [20, 9, 17], [0, 5, 0], sorted(kept)
    mine, plain = leaves(46, 3), leaves(46, 3)
    with mock.patch.object(packed_attention, "MAX_MASK", 0):
        attention = PackedAttention(lengths_S, CPU, shared_S=shared_S, kept_R=torch.tensor(chosen))
    q, k, v = mine
    some = attention.attend_kept(q[:, chosen], k, v, 0.3)
    assert attention._kept is not None
    masks = [call._mask_S1QL for call in attention._kept._calls]
    shares = any(20 <= token < 29 for token in chosen)
    assert sum(mask is not None for mask in masks) == shares
    expected = by_definition(*plain, paths_of(lengths_S, shared_S))[chosen]
    torch.testing.assert_close(some, expected)
    weight = torch.randn(some.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (some * weight).sum().backward()
    (expected * weight).sum().backward()
    for one, other in zip(mine, plain, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


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
    assert sorted(int(p.rows[0]) for bucket in buckets for p in bucket) == sorted(
        int(p.rows[0]) for p in parts
    )
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
