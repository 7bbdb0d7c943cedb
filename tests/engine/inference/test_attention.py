"""The seam of attention, and the cache that the embedded engine brings to it."""

import math
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from rocstar.engine.inference.embedded import kv as kv_module
from rocstar.engine.inference.embedded.attention import (
    buckets,
    choose_attention_backends,
    grouped_attention,
    install,
    needs_all_heads,
)
from rocstar.engine.inference.embedded.kv import Extra, SlotKv, free_bytes, kv_capacity

pytestmark = pytest.mark.usefixtures("_one_torch_thread")

CPU = torch.device("cpu")
H, K, D = 4, 2, 8


def by_definition(q_HTD: Tensor, k_KTD: Tensor, v_KTD: Tensor, scale: float) -> Tensor:
    """Causal softmax attention of one sequence, written out."""
    k, v = (x.repeat_interleave(H // K, dim=0) for x in (k_KTD, v_KTD))
    scores = q_HTD @ k.transpose(1, 2) * scale
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return (scores.masked_fill(~allowed, -math.inf).softmax(-1) @ v).transpose(0, 1)


def leaves(num_tokens: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(H, num_tokens, D), (K, num_tokens, D), (K, num_tokens, D)]
    return [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=40))
def test_cost_is_the_sum_of_squares_not_the_square_of_the_sum(lengths_S: list[int]) -> None:
    groups = buckets(lengths_S)
    assert sorted(s for group in groups for s in group) == list(range(len(lengths_S)))
    cost = sum(len(group) * max(lengths_S[s] for s in group) ** 2 for group in groups)
    assert cost <= sum((1.3 * length + 16) ** 2 for length in lengths_S)


def test_buckets_are_few() -> None:
    """Each is one call of the attention kernel per layer."""
    assert len(buckets(list(range(1, 12_001, 7)))) < 30


def test_model_with_sliding_windows_is_refused() -> None:
    config = Qwen2Config(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=1,
    )
    with pytest.raises(ValueError, match="layers of sliding_attention"):
        install(Qwen2ForCausalLM(config))


def test_scale_defaults_to_the_head_size() -> None:
    from rocstar.engine.inference.embedded.attention import _forward

    asked: list[tuple[int, float]] = []

    class Asked:
        def attend(self, layer: int, q_HTD: Tensor, k_KTD: Tensor, v_KTD: Tensor, scale: float) -> Tensor:
            asked.append((layer, scale))
            return q_HTD.transpose(0, 1)

    q, k, v = (x[None].detach() for x in leaves(6, 0))
    module: Any = SimpleNamespace(layer_idx=3)
    _forward(module, q, k, v, None, attention=Asked())
    _forward(module, q, k, v, None, 0.3, attention=Asked())
    assert asked == [(3, D**-0.5), (3, 0.3)]


# ---- the backend of torch's attention ----

HALF, SINGLE = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("device", "is_hip", "dtype", "has_mask", "repeats"),
    [
        ("cpu", False, HALF, True, False),
        ("cpu", False, SINGLE, True, False),
        ("cpu", False, SINGLE, False, False),
        ("cuda", False, HALF, False, False),  # flash
        ("cuda", False, torch.float16, False, False),  # flash
        ("cuda", False, HALF, True, True),  # memory-efficient: prefill and scoring have a mask
        ("cuda", False, SINGLE, True, True),
        ("cuda", False, SINGLE, False, True),
        ("cuda", True, HALF, False, True),
        ("cuda", True, HALF, True, True),
        ("cuda", True, SINGLE, True, True),
        ("cuda", True, SINGLE, False, True),
    ],
)
def test_heads_are_repeated_where_no_kernel_takes_groups(
    device: str, is_hip: bool, dtype: torch.dtype, has_mask: bool, repeats: bool
) -> None:
    assert needs_all_heads(device, dtype, has_mask=has_mask, is_hip=is_hip) == repeats


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_grouped_attention_is_that_of_the_definition(
    repeats: bool, is_causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mask starts at token 4, as that of the second part of a prompt does."""
    monkeypatch.setattr("rocstar.engine.inference.embedded.attention.needs_all_heads", lambda *_, **__: repeats)
    q, k, v = (x.detach() for x in leaves(9, 0))
    start = 0 if is_causal else 4
    mask = None if is_causal else torch.ones(5, 9, dtype=torch.bool).tril(4)
    out = grouped_attention(q[None, :, start:], k[None], v[None], mask, 0.5)
    torch.testing.assert_close(out[0].transpose(0, 1), by_definition(q, k, v, 0.5)[start:])


def test_cudnn_attention_is_off_on_a_gpu_alone() -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        choose_attention_backends(CPU)
        assert torch.backends.cuda.cudnn_sdp_enabled()
        choose_attention_backends(torch.device("cuda"))
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


# ---- the cache ----


def cache(dtype: torch.dtype, *, native: bool) -> SlotKv:
    made = SlotKv(num_layers=1, num_kv_heads=K, head_dim=D, dtype=dtype, device=CPU, native=native)
    assert made.is_native == native, "csrc/attend/attend.cpp is not built: make setup"
    return made


@pytest.mark.parametrize(("dtype", "native"), [(torch.float64, False), (torch.float32, False), (torch.float32, True)])
def test_slots_attend_to_their_own_tokens_through_swap_copy_and_growth(dtype: torch.dtype, native: bool) -> None:
    """Three rows of different lengths enter in two forwards; in between, rows move and one is copied."""
    histories = [leaves(n, seed) for seed, n in enumerate([70, 3, 10])]
    histories = [[x.detach().to(dtype) for x in h] for h in histories]
    kv = cache(dtype, native=native)

    def forward(rows: list[int], starts: list[int], ends: list[int]) -> None:
        """Slot n takes tokens [starts[n], ends[n]) of history rows[n]; each one's output is checked."""
        extras = [
            Extra(slot=n, start=s, end=e - 1) for n, (s, e) in enumerate(zip(starts, ends, strict=True)) if e - 1 > s
        ]
        positions_T, plan = kv.plan([e - 1 for e in ends], extras)
        owner = [*range(len(rows)), *(x.slot for x in extras for _ in range(x.start, x.end))]
        assert len(owner) == len(positions_T)
        flat = [
            torch.stack([histories[rows[n]][i][:, p] for n, p in zip(owner, positions_T.tolist(), strict=True)], dim=1)
            for i in range(3)
        ]
        out = plan.attend(0, flat[0], flat[1], flat[2], 0.5)
        for n, p, row in zip(owner, positions_T.tolist(), out, strict=True):
            expected = by_definition(*(x[:, : p + 1] for x in histories[rows[n]]), 0.5)[-1]
            torch.testing.assert_close(row, expected)

    assert kv.tokens_per_slot == 0
    forward([0, 1, 2], [0, 0, 0], [60, 2, 1])
    assert kv.tokens_per_slot == 64
    kv.swap(0, 2, 60)
    forward([2, 1], [1, 2], [4, 3])
    kv.copy(2, 1, 60)
    forward([2, 0, 0], [4, 60, 60], [10, 65, 70])
    assert kv.tokens_per_slot == 128
    kv.reserve(1, 1)
    assert (kv.num_slots, kv.tokens_per_slot) == (3, 128)


def empty_cache(*, num_layers: int = 1, capacity: int = 1 << 40) -> SlotKv:
    return SlotKv(
        num_layers=num_layers, num_kv_heads=K, head_dim=D, dtype=torch.float32, device=CPU, capacity=capacity
    )


def test_growth_adds_an_eighth_of_the_tokens_up_to_the_capacity() -> None:
    kv = empty_cache(capacity=2 * 1300)
    for asked, held in [(100, 128), (129, 192), (1024, 1024), (1025, 1152), (1153, 1344)]:
        kv.reserve(2, asked)
        assert kv.tokens_per_slot == held, "1344: the capacity of 1300 in blocks of 64"


def test_slots_grow_by_a_sixteenth_and_go_when_tokens_grow() -> None:
    kv = empty_cache()
    for slots, tokens, held in [(16, 64, 16), (17, 64, 17), (64, 64, 64), (65, 64, 68), (4, 65, 4)]:
        kv.reserve(slots, tokens)
        assert kv.num_slots == held


def test_tokens_of_a_row_that_left_go_when_slots_come() -> None:
    kv = empty_cache()
    kv.reserve(1, 4000)
    kv.reserve(100, 50)
    assert (kv.num_slots, kv.tokens_per_slot) == (100, 64)


# ---- the memory of the cache ----


class LiveBytes:
    """Bytes of the tensors that the cache made and still holds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.most = self.left = 0
        self._make = kv_module.zeros
        monkeypatch.setattr(kv_module, "zeros", self._zeros)

    def _zeros(self, *arguments: Any) -> Tensor:
        made = self._make(*arguments)
        self.now += made.nbytes
        self.most = max(self.most, self.now)
        weakref.finalize(made.untyped_storage(), self._freed, made.nbytes)
        return made

    def _freed(self, num_bytes: int) -> None:
        self.now -= num_bytes


ROWS, LONGEST = 16, 2100


def grow_to_sixteen_rows(kv: SlotKv, live: LiveBytes) -> float:
    """16 rows of 2,100 tokens, token by token; four rows come every 100 tokens, with prompts as long as the
    first rows are by then. Returns the most bytes over what the rows' tokens take at the same moment."""
    each = 2 * 28 * K * D * torch.float32.itemsize
    worst = 0.0
    for tokens in range(512, LONGEST + 1):
        rows = min(ROWS, 4 + (tokens - 512) // 100 * 4)
        live.most = live.now
        kv.reserve(rows, tokens)
        worst = max(worst, live.most / (each * rows * tokens))
    return worst


def test_sixteen_rows_hold_at_most_1_3_times_their_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of layers is that of Qwen3-0.6B; its heads only scale both sides."""
    live = LiveBytes(monkeypatch)
    kv = empty_cache(num_layers=28)
    assert 1.0 <= grow_to_sixteen_rows(kv, live) <= 1.3
    assert live.now == kv.held_bytes
    kv.give_back()
    assert live.now == kv.held_bytes == 0


def test_cache_is_empty_after_memory_ran_out_in_its_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    live = LiveBytes(monkeypatch)
    kv = empty_cache(num_layers=4)
    kv.reserve(2, 64)
    left = 5

    def zeros(*arguments: Any) -> Tensor:
        nonlocal left
        left -= 1
        if not left:
            raise MemoryError
        return live._zeros(*arguments)

    monkeypatch.setattr(kv_module, "zeros", zeros)
    with pytest.raises(MemoryError):
        kv.reserve(2, 65)
    assert (kv.num_slots, kv.tokens_per_slot, kv.held_bytes, live.now) == (0, 0, 0, 0)
    kv.reserve(2, 65)
    assert kv.held_bytes == live.now > 0


def test_capacity_is_what_fits_into_the_free_memory() -> None:
    """Qwen3-0.6B in bfloat16: 112 KiB per token, so half of 70 GiB is 16 rows of 20,480 tokens."""
    shape: dict[str, Any] = {"num_layers": 28, "num_kv_heads": 8, "head_dim": 128, "dtype": torch.bfloat16}
    assert kv_capacity(**shape, free_bytes=70 << 30, share=0.5) == 16 * 20480
    assert free_bytes(CPU) > 1 << 28
