"""What a forward keeps, by arithmetic against what autograd is seen to keep; when layers keep their input."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from rocstar.train.learner import activations
from rocstar.train.learner.batch import pack
from rocstar.train.learner.policy_model import PolicyModel, checkpoint_activations
from rocstar.train.learner.sharding import runs_layers_again
from rocstar.train.learner.world import World
from rocstar.train.recipe.model_config import ModelConfig

from ...fakes.tiny import SIZES as TINY
from ...fakes.tiny import make_example

SIZES = TINY | {"hidden_size": 64, "intermediate_size": 192, "head_dim": 32}
FAMILIES = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}


def made(family: str, num_layers: int) -> PreTrainedModel:
    config, kind = FAMILIES[family]
    torch.manual_seed(0)
    model: PreTrainedModel = kind(config(**SIZES | {"num_hidden_layers": num_layers})).bfloat16()
    return model


def kept(model: PreTrainedModel, num_tokens: int) -> int:
    """Bytes of the storages, weights aside, that autograd keeps of one row."""
    ids = torch.randint(60, (num_tokens + 1,), generator=torch.Generator().manual_seed(0)).tolist()
    (micro,) = pack([make_example(ids, [0, *[1] * num_tokens])], tokens_per_microbatch=num_tokens)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found: dict[int, int] = {}
    alive = []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        PolicyModel(model)(micro, lambda hidden, weight: hidden.sum())
    return sum(found.values())


def per_token_and_layer(family: str, *, inputs_alone: bool) -> float:
    """A difference of two depths and of two lengths: what belongs to neither cancels."""
    found = {}
    for depth in (2, 4):
        for length in (64, 128):
            model = made(family, depth)
            if inputs_alone:
                checkpoint_activations(model)
            found[depth, length] = kept(model, length)
    return ((found[4, 128] - found[4, 64]) - (found[2, 128] - found[2, 64])) / 2 / 64


@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_keeps_what_is_foretold(family: str) -> None:
    config = made(family, 1).config
    counted = per_token_and_layer(family, inputs_alone=False)
    assert counted == pytest.approx(activations.layer_bytes(config, 2), rel=0.1)


def test_a_layer_that_is_run_again_keeps_its_input_alone() -> None:
    assert per_token_and_layer("qwen3", inputs_alone=True) == 2 * SIZES["hidden_size"]
    config = made("qwen3", 3).config
    whole = activations.layer_bytes(config, 2)
    assert activations.kept_bytes(config, 2, 10, inputs_alone=True) == 10 * (3 * 128 + whole)
    assert activations.kept_bytes(config, 2, 10, inputs_alone=False) == 30 * whole


@pytest.mark.parametrize(
    ("choice", "tokens", "again"), [("auto", 0, False), ("auto", 10**9, True), ("on", 0, True), ("off", 10**9, False)]
)
def test_auto_asks_whether_a_microbatch_fits(choice: Any, tokens: int, again: bool) -> None:
    config = ModelConfig(activation_checkpointing=choice)
    assert runs_layers_again(made("qwen3", 1), World(rank=0, size=1), config, tokens) is again


def test_recipes_of_before_said_true_and_false() -> None:
    found = [ModelConfig.model_validate({"activation_checkpointing": said}) for said in (True, False, "auto")]
    assert [config.activation_checkpointing for config in found] == ["on", "off", "auto"]


def test_a_process_has_its_share_of_the_machine() -> None:
    whole, half = (activations.device_bytes(torch.device("cpu"), ranks) for ranks in (1, 2))
    assert whole > 1 << 28 and half == whole // 2
