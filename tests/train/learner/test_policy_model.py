"""What the learner runs: heads that are a plain product, activations kept or made again."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rocstar.train.learner import packed_layers
from rocstar.train.learner.batch import pack
from rocstar.train.learner.policy_model import PolicyModel, check_head, checkpoint_activations
from rocstar.train.recipe.errors import ConfigError

from ...fakes.tiny import SIZES, make_example


class Capped(nn.Linear):
    """A head that is a linear layer and does more."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.tanh(super().forward(hidden) / 30) * 30


@pytest.mark.parametrize("head", [nn.Linear(32, 60), Capped(32, 60, bias=False)])
def test_a_head_that_does_more_than_multiply_is_refused(head: nn.Module) -> None:
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    model.lm_head = head
    with pytest.raises(ConfigError, match=r"has a bias|not the product"):
        PolicyModel(model)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (CohereConfig(**SIZES, logit_scale=0.25), CohereForCausalLM),
        (GraniteConfig(**SIZES, logits_scaling=4.0), GraniteForCausalLM),
        (Gemma2Config(**SIZES, final_logit_softcapping=30.0), Gemma2ForCausalLM),
    ],
)
def test_logits_that_are_scaled_or_capped_are_refused(config: Any, kind: Any) -> None:
    torch.manual_seed(0)
    model = kind(config)
    with pytest.raises(ConfigError, match=rf"the logits of {kind.__name__} are not the product of"):
        check_head(model)
    assert "forward" not in vars(model.get_decoder()), "the decoder is its own again"


@pytest.mark.parametrize("tied", [True, False])
def test_plain_heads_pass(tied: bool) -> None:
    for config, kind in ((LlamaConfig, LlamaForCausalLM), (Qwen3Config, Qwen3ForCausalLM)):
        check_head(kind(config(**SIZES, tie_word_embeddings=tied)))


def counted_runs(model: PreTrainedModel, is_packed: bool, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The layers in the order in which their MLPs run."""
    runs: list[int] = []
    if is_packed:
        real = packed_layers._mlp

        def counted(layer: Any, hidden: torch.Tensor) -> torch.Tensor:
            runs.append(layer.self_attn.layer_idx)
            return real(layer, hidden)

        monkeypatch.setattr(packed_layers, "_mlp", counted)
    else:
        for number, layer in enumerate(model.get_decoder().layers):
            layer.mlp.register_forward_hook(lambda *_, number=number: runs.append(number))
    return runs


@pytest.mark.parametrize(
    ("config", "kind", "is_packed"), [(Qwen3Config, Qwen3ForCausalLM, True), (Olmo2Config, Olmo2ForCausalLM, False)]
)
def test_checkpointed_layers_run_again_in_backward_and_change_no_gradient(
    config: Any, kind: Any, is_packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the last, inside their hooks, for any number of `PolicyModel`s of the model."""
    example = make_example([3, 9, 4, 7, 7, 1], [0, 0, 1, 1, 0, 1], weight=0.0)
    (micro,) = pack([example], tokens_per_microbatch=100)
    gradients = []
    for checkpointed in (False, True):
        torch.manual_seed(1)
        model = kind(config(**SIZES))
        if checkpointed:
            checkpoint_activations(model)
        with monkeypatch.context() as patches, torch.no_grad():  # without a graph nothing runs again
            runs = counted_runs(model, is_packed, patches)
            PolicyModel(model)(micro, lambda hidden, weight: hidden)
            assert runs == [0, 1, 2]
        hooked: list[int] = []
        for number, layer in enumerate(model.get_decoder().layers):
            layer.register_forward_hook(lambda *_, number=number, hooked=hooked: hooked.append(number))
        with monkeypatch.context() as patches:
            runs = counted_runs(model, is_packed, patches)
            out = PolicyModel(model)(micro, lambda hidden, weight: (hidden @ weight.T).square().sum())
            assert runs == [0, 1, 2]
            out.backward()
            assert runs == ([0, 1, 2, 1, 0] if checkpointed else [0, 1, 2])
        assert hooked == [0, 1, 2], "the hooks of FSDP would gather the weights a second time"
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
