"""The learner's forward of a decoder layer is the model's: values, gradients, and which tokens come out."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rocstar.engine.inference.embedded import attention
from rocstar.train.learner import packed_layers
from rocstar.train.learner.packed_attention import PackedAttention

from ...fakes.tiny import SIZES as TINY

SIZES = TINY | {"num_hidden_layers": 2, "max_position_embeddings": 64}
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama with biases": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
}
LENGTHS, SHARED = [6, 1, 9, 4], [0, 3, 2, 8]
CPU = torch.device("cpu")


def made(family: str) -> PreTrainedModel:
    config, kind, extra = FAMILIES[family]
    model: PreTrainedModel = kind._from_config(config(**SIZES, **extra), attn_implementation="sdpa")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim < 2 else 0.0, 0.25, generator=generator)
    return model


def packed_hidden(model: Any, dtype: torch.dtype = torch.float32) -> tuple[Tensor, list[list[int]], list[int]]:
    """Hidden states of the kept tokens; every sequence's ids; what was kept, as (sequence, end) by number."""
    ids = torch.randint(0, 60, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1)).tolist()
    positions, rows, start = [], list[list[int]](), 0
    for own, shared in zip(LENGTHS, SHARED, strict=True):
        rows.append([*(rows[-1][:shared] if rows else []), *ids[start : start + own]])
        positions += range(shared, shared + own)
        start += own
    kept = [2, 3, 5, 6, 15, 17]
    hidden = model.get_decoder()(
        input_ids=torch.tensor([ids]),
        position_ids=torch.tensor([positions]),
        use_cache=False,
        attention=PackedAttention(LENGTHS, CPU, shared_S=SHARED, kept_R=torch.tensor(kept)),
    ).last_hidden_state[0]
    return hidden, rows, kept


def plain_hidden(model: Any, rows: list[list[int]], kept: list[int]) -> Tensor:
    flat, outs = [], []
    for own, shared, row in zip(LENGTHS, SHARED, rows, strict=True):
        out = model.get_decoder()(input_ids=torch.tensor([row]), use_cache=False).last_hidden_state[0]
        flat += list(out[shared : shared + own])
    outs = [flat[token] for token in kept]
    return torch.stack(outs)


@pytest.mark.parametrize("family", FAMILIES)
def test_kept_tokens_have_the_models_own_hidden_states_and_gradients(family: str) -> None:
    mine, plain = made(family), made(family)
    attention.install(mine)
    assert packed_layers.install(mine)
    found, rows, kept = packed_hidden(mine)
    expected = plain_hidden(plain, rows, kept)
    assert len(found) == len(kept)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(2))
    (found * weight).sum().backward()
    (expected * weight).sum().backward()
    theirs = dict(plain.named_parameters())
    for name, parameter in mine.named_parameters():
        torch.testing.assert_close(
            parameter.grad, theirs[name].grad, atol=2e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_bfloat16_is_the_models_own_to_its_precision() -> None:
    mine, plain = made("qwen3").to(torch.bfloat16), made("qwen3")
    attention.install(mine)
    assert packed_layers.install(mine)
    found, rows, kept = packed_hidden(mine)
    assert found.dtype == torch.bfloat16
    expected = plain_hidden(plain, rows, kept)
    assert float(((found.float() - expected).norm() / expected.norm()).detach()) < 0.03


def test_another_forward_runs_as_before() -> None:
    """The engine brings an attention of its own: all tokens come out, by the model's own code."""

    class Own:
        def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
            return q.transpose(0, 1)

    mine, plain = made("qwen3"), made("qwen3")
    for model in (mine, plain):
        attention.install(model)
    packed_layers.install(mine)
    ids = torch.arange(5)[None]
    outs = [model(input_ids=ids, use_cache=False, attention=Own()).logits for model in (mine, plain)]
    assert torch.equal(*outs)


def test_what_is_not_of_the_family_is_left_alone() -> None:
    gemma = GemmaForCausalLM._from_config(GemmaConfig(**SIZES), attn_implementation="sdpa")
    assert not packed_layers.install(gemma)
    replaced: Any = made("llama")

    class Other(nn.Linear):
        pass

    replaced.model.layers[1].mlp.up_proj = Other(32, 48, bias=False)
    assert not packed_layers.install(replaced)
    assert "forward" not in vars(replaced.model.layers[0])
