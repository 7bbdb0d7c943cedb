"""The forward in C++: the same numbers as torch's, each token computed once."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from rocstar.engine.inference.embedded import attention, native
from rocstar.engine.inference.embedded.decoder import _Decoder, _Modules
from rocstar.engine.inference.embedded.kv import Extra, SlotKv

pytestmark = pytest.mark.usefixtures("_one_torch_thread")

ARCHITECTURES = ["qwen3", "llama", "qwen2"]


@pytest.fixture(autouse=True)
def _anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is right on every machine, and chosen on fast ones."""
    monkeypatch.setattr(native._decode, "FORWARD_IS_FAST", True)


def cache_of(model: Any, *, native: bool = True) -> SlotKv:
    config = model.config
    return SlotKv(
        num_layers=config.num_hidden_layers,
        num_kv_heads=config.num_key_value_heads,
        head_dim=model.model.layers[0].self_attn.head_dim,
        dtype=model.dtype,
        device=torch.device("cpu"),
        native=native,
    )


def forward_of(model: Any) -> tuple[native.NativeForward, list[int]]:
    """The forward, and how often it left a call to the other one."""
    attention.install(model)
    decoder, left = _Decoder(model), []

    def other(*arguments: Any) -> Tensor:
        left.append(1)
        return decoder(*arguments)

    return native.NativeForward(model, other), left


def call(forward: Any, kv: SlotKv) -> Tensor:
    """Two rows, one of them with a prompt of ten tokens before its last one."""
    positions_T, plan = kv.plan([10, 0], [Extra(slot=2, start=0, end=10)], [2, 1])
    ids_T = torch.tensor([7, 290, *range(40, 50)])
    logits: Tensor = forward(ids_T, positions_T, plan, 2)
    return logits


@torch.inference_mode()
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_and_cache_are_those_of_the_modules(architecture: str, models: Any) -> None:
    model = models(architecture)
    forward, left = forward_of(model)
    mine, own = cache_of(model), cache_of(model)
    torch.testing.assert_close(call(forward, mine), call(_Modules(model), own), atol=2e-5, rtol=1e-5)
    for a, b in zip((*mine._k, *mine._v), (*own._k, *own._v), strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-5)
    assert not left


def test_a_rotation_that_depends_on_more_than_the_position_is_torchs(models: Any) -> None:
    model = models("llama")
    model.model.rotary_emb.rope_type = "dynamic"
    assert not native.fits(model)


@torch.inference_mode()
def test_weights_are_read_where_they_are(models: Any) -> None:
    """A learner that puts another tensor in a parameter's place, or another parameter, is followed."""
    model = models("qwen2")
    forward, left = forward_of(model)
    layer, before = model.model.layers[1], call(forward, cache_of(model))
    layer.mlp.up_proj.weight.data = layer.mlp.up_proj.weight.data * 2
    second = call(forward, cache_of(model))
    layer.self_attn.q_proj.bias = nn.Parameter(layer.self_attn.q_proj.bias + 1)
    third = call(forward, cache_of(model))
    assert not torch.equal(before, second) and not torch.equal(second, third)
    torch.testing.assert_close(third, call(_Modules(model), cache_of(model)), atol=2e-5, rtol=1e-5)
    assert not left
    layer.mlp.gate_proj.weight.data = layer.mlp.gate_proj.weight.data.t().contiguous().t()
    torch.testing.assert_close(third, call(forward, cache_of(model)), atol=2e-5, rtol=1e-5)
    assert left == [1]


@torch.inference_mode()
def test_other_attention_is_the_others(models: Any) -> None:
    model = models("llama")
    forward, left = forward_of(model)
    kv = cache_of(model, native=False)
    positions_T, plan = kv.plan([3], [Extra(slot=0, start=0, end=3)])
    forward(torch.tensor([7, 8, 9, 10]), positions_T, plan, 1)
    assert left == [1]


@given(
    rows=st.integers(0, 9),
    lengths=st.lists(st.integers(0, 200), min_size=9, max_size=9),
    drafts=st.lists(st.integers(0, 30), min_size=9, max_size=9),
    threads=st.integers(1, 5),
)
def test_each_token_is_in_one_part_with_its_slot(
    rows: int, lengths: list[int], drafts: list[int], threads: int
) -> None:
    slots = [5, 3, 8, 0, 1, 7, 2, 6, 4]
    extras = [
        Extra(slot=slot, start=0, end=length)
        for slot, length in zip(slots[: rows or 9], lengths, strict=False)
        if length
    ]
    slots_N = [slot for slot, draft in zip(slots[:rows], drafts, strict=False) for _ in range(1 + draft)]
    plan: Any = SimpleNamespace(slots_N=slots_N, extras=extras)
    parts = native.parts_of(plan, threads)
    tokens = slots_N + [e.slot for e in extras for _ in range(e.end)]
    owner: dict[int, set[int]] = {}
    seen = []
    for number, (begin, end, more_begin, more_end) in enumerate(parts):
        for token in [*range(begin, end), *range(more_begin, more_end)]:
            seen.append(token)
            owner.setdefault(tokens[token], set()).add(number)
    assert sorted(seen) == list(range(len(tokens)))
    assert all(len(numbers) == 1 for numbers in owner.values())
    assert len(parts) <= threads
