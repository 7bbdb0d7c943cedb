"""Short attention is attention, values and gradients; the switch of the products keeps float32."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rocstar.kernels import cpu_products, short_attention
from rocstar.kernels.cpu_products import fast_products

torch.set_num_threads(1)


def leaves(num: int, heads: int, groups: int, queries: int, keys: int, size: int) -> list[Tensor]:
    """As the packed attention brings them: transposed views."""
    generator = torch.Generator().manual_seed(num)
    shapes = ((num, queries, heads, size), (num, keys, groups, size), (num, keys, groups, size))
    return [torch.randn(s, generator=generator).requires_grad_() for s in shapes]


def later_queries(num: int, queries: int, keys: int) -> Tensor:
    """The queries are the last places of a path, of another length in each sequence."""
    ends = torch.arange(queries) + keys - queries - torch.arange(num)[:, None]
    hidden = torch.arange(keys) > ends.clamp(min=0)[..., None]
    return torch.zeros(num, queries, keys).masked_fill_(hidden, float("-inf"))[:, None]


@pytest.mark.parametrize("chunk_scores", [1, 1 << 18])
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (5, 12), (1, 9)])
@pytest.mark.parametrize(("heads", "groups"), [(4, 2), (3, 3), (6, 1)])
def test_it_is_attention(
    heads: int, groups: int, queries: int, keys: int, chunk_scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_attention, "CHUNK_SCORES", chunk_scores)
    mask = None if queries == keys else later_queries(5, queries, keys)
    found, expected = [], []
    for out, wide in ((found, False), (expected, True)):
        inputs = leaves(5, heads, groups, queries, keys, 8)
        q, k, v = (x.transpose(1, 2) for x in inputs)
        if wide:
            o = F.scaled_dot_product_attention(
                *(x.double() for x in (q, k, v)),
                attn_mask=None if mask is None else mask.double(),
                is_causal=mask is None,
                scale=0.3,
                enable_gqa=True,
            )
        else:
            o = short_attention.attend(q, k, v, mask, 0.3)
        weights = torch.randn(o.shape, generator=torch.Generator().manual_seed(1))
        (o * weights).sum().backward()
        out += [o.detach().float(), *(x.grad for x in inputs)]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_it_is_for_short_rows_of_float32_on_a_cpu_that_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_products, "_is_better", lambda: True)
    q, k, _ = (x.transpose(1, 2) for x in leaves(2, 4, 2, 8, 8, 8))
    assert not short_attention.is_faster(q, k), "outside fast_products"
    with fast_products():
        assert short_attention.is_faster(q, k)
        assert not short_attention.is_faster(q.bfloat16(), k)
        assert not short_attention.is_faster(q, k.repeat(1, 1, short_attention.MAX_SCORES // 32, 1)[:, :1])
    monkeypatch.setattr(cpu_products, "_is_better", lambda: False)
    with fast_products():
        assert not short_attention.is_faster(q, k)


@pytest.fixture
def ieee() -> Iterator[Any]:
    """The setting of products in float32, plain while the test runs."""
    settings = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, settings.fp32_precision = settings.fp32_precision, "ieee"
    yield settings
    settings.fp32_precision = before


def test_products_stay_float32_and_the_setting_is_put_back(ieee: Any) -> None:
    a = torch.randn(300, 300, generator=torch.Generator().manual_seed(0))
    with fast_products():
        error = (a @ a).double() - a.double() @ a.double()
        assert float(error.abs().max() / (a @ a).abs().max()) < cpu_products.EXACT
    assert ieee.fp32_precision == "ieee"
    with pytest.raises(RuntimeError, match="cannot be multiplied"), fast_products():
        a @ a[:, :7].T
    assert ieee.fp32_precision == "ieee"


def test_a_cpu_that_would_lose_precision_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one with matrix units would: its products come out as bfloat16's."""
    monkeypatch.setattr(cpu_products, "EXACT", 1e-9)
    assert not cpu_products._is_exact()
