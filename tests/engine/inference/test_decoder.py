"""The fast forward is the model's own forward, and is taken only where it is."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rocstar.engine.inference.embedded import attention
from rocstar.engine.inference.embedded.decoder import _Decoder, _is_plain, _Modules, forward_of

pytestmark = pytest.mark.usefixtures("_one_torch_thread")


class Spy:
    """Attention that tells what it was given and answers with something that depends on all of it."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def attend(self, layer: int, q_HTD: Tensor, k_KTD: Tensor, v_KTD: Tensor, scale: float) -> Tensor:
        self.seen += [q_HTD, k_KTD, v_KTD]
        heads = len(q_HTD) // len(k_KTD)
        mixed = q_HTD * scale + (k_KTD * (layer + 1) + v_KTD).repeat_interleave(heads, dim=0)
        return mixed.transpose(0, 1)


@torch.inference_mode()
@pytest.mark.parametrize("architecture", ["qwen3", "llama", "qwen2"])
def test_every_layer_gets_the_same_and_so_do_the_logits(architecture: str, models: Any) -> None:
    model = models(architecture)
    attention.install(model)
    ids, positions = torch.tensor([5, 290, 17, 17, 60]), torch.tensor([0, 3, 500, 90, 91])
    mine, own = Spy(), Spy()
    told = _Decoder(model)(ids, positions, mine, 3)
    expected = _Modules(model)(ids, positions, own, 3)
    assert told.shape == (3, 300) and len(mine.seen) == 6
    for a, b in zip(mine.seen, own.seen, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(told, expected, atol=1e-5, rtol=1e-5)


class Halved(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 2


def replace_a_linear(model: Any) -> None:
    old = model.model.layers[1].mlp.up_proj
    model.model.layers[1].mlp.up_proj = Halved(old.in_features, old.out_features, bias=False)


CHANGES = {
    "half precision": lambda model: model.bfloat16(),
    "one weight in half precision": lambda model: model.lm_head.bfloat16(),
    "another linear": replace_a_linear,
    "a hook inside": lambda model: model.model.norm.register_forward_hook(lambda *_: None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_model_is_called_as_it_is(change: str, models: Any) -> None:
    model = models("qwen3")
    assert _is_plain(model)
    CHANGES[change](model)
    assert not _is_plain(model) and isinstance(forward_of(model), _Modules)


@torch.inference_mode()
def test_hook_on_the_model_is_heard_whenever_it_came(models: Any) -> None:
    model = models("llama")
    attention.install(model)
    forward, heard = forward_of(model), []
    ids = torch.tensor([5, 6])
    forward(ids, ids, Spy(), 1)
    handle = model.register_forward_pre_hook(lambda *_: heard.append(1))
    forward(ids, ids, Spy(), 1)
    handle.remove()
    forward(ids, ids, Spy(), 1)
    assert heard == [1]


@torch.inference_mode()
def test_weights_are_read_at_every_call(models: Any) -> None:
    """They are the learner's own tensors: a publish without a source has nothing to copy."""
    model = models("qwen3")
    attention.install(model)
    forward, ids = forward_of(model), torch.tensor([5, 6])
    before = forward(ids, ids, Spy(), 2)
    for parameter, other in zip(model.parameters(), models("qwen3", seed=1).parameters(), strict=True):
        parameter.data.copy_(other)
    assert not torch.allclose(before, forward(ids, ids, Spy(), 2))
