"""The kernel of torch that each caller of attention takes on a GPU. None takes the plain formula."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from rocstar.engine.inference.embedded.scoring import TextAttention
from rocstar.kernels import varlen_attention
from rocstar.train.learner.model_io import model_without_weights
from rocstar.train.learner.packed_attention import PackedAttention
from rocstar.train.learner.policy_model import PolicyModel
from rocstar.train.learner.scratch import build_model
from rocstar.train.recipe.load import parse_recipe
from rocstar.train.recipe.model_config import ScratchConfig
from rocstar.train.rehearsal import fake_gpu as fake_gpu_module
from rocstar.train.rehearsal.fake_gpu import GPU, fake_gpu
from rocstar.train.rehearsal.phases import decode

H, K, D = 4, 2, 16
HALF, SINGLE = torch.bfloat16, torch.float32
SCRATCH = {"vocab_size": 300, "hidden_size": 64, "num_layers": 1, "num_heads": H, "num_kv_heads": K}


def packed(dtype: torch.dtype, shared: int) -> None:
    """The learner: two sequences of 8 tokens, the second of which shares `shared` with the first."""
    q, k, v = (torch.empty(heads, 16 - shared, D, dtype=dtype, device=GPU) for heads in (H, K, K))
    PackedAttention([8, 8 - shared], GPU, shared_S=[0, shared]).attend(0, q, k, v, 1.0)


def scoring(dtype: torch.dtype) -> None:
    q, k, v = (torch.empty(heads, 8, D, dtype=dtype, device=GPU) for heads in (H, K, K))
    TextAttention().attend(0, q, k, v, 1.0)


def caller() -> str:
    """Of the innermost frame that is a caller of attention."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if file.endswith("packed_attention.py"):
            return "learner"
        if file.endswith("scoring.py"):
            return "scoring"
        if file.endswith("embedded/kv.py") and name.endswith((".attend", "._decode")):
            return "prefill" if "Extras" in name else "decode"
        frame = frame.f_back
    raise AssertionError("attention without a known caller")


@pytest.mark.parametrize(
    ("dtype", "is_hip", "expected"),
    [
        (HALF, False, set()),
        (SINGLE, False, {("learner", "efficient")}),
        (HALF, True, {("learner", "flash"), ("learner", "efficient")}),
        (SINGLE, True, {("learner", "efficient")}),
    ],
    ids=["bf16-cuda", "fp32-cuda", "bf16-rocm", "fp32-rocm"],
)
def test_no_caller_falls_back_to_the_plain_formula(
    dtype: torch.dtype, is_hip: bool, expected: set[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefill, scoring and decode have a mask: the memory-efficient kernel. On ROCm no kernel gets groups.

    A learner in half precision on CUDA does not ask torch: it calls the flash kernel itself, once per layer.
    """
    found: set[tuple[str, str]] = set()
    real = fake_gpu_module.kernel_of

    def kernel_of(q: Tensor, k: Tensor, mask: Tensor | None) -> str:
        kernel = real(q, k, mask)
        found.add((caller(), kernel))
        assert not is_hip or q.shape[-3] == k.shape[-3]
        return kernel

    varlen_calls = []
    attend = varlen_attention.attend

    def one_call(*args: Any) -> Tensor:
        varlen_calls.append(caller())
        return attend(*args)

    monkeypatch.setattr(fake_gpu_module, "kernel_of", kernel_of)
    monkeypatch.setattr(varlen_attention, "attend", one_call)
    monkeypatch.setattr(torch.version, "hip", "7.0" if is_hip else None)
    model = {"dtype": str(dtype).removeprefix("torch."), "scratch": SCRATCH}
    recipe = parse_recipe({"model": model, "engine": {"kind": "embedded"}}, where="test")
    any_model: Any = model_without_weights(recipe.model)
    any_model.to(dtype)
    with fake_gpu(1) as gpu, torch.no_grad():
        packed(dtype, 0)
        packed(dtype, 4)
        scoring(dtype)
        decode(gpu, recipe, any_model)  # the engine's prefill and decode
    others = {(name, "efficient") for name in ("prefill", "decode", "scoring")}
    assert found == expected | others
    assert varlen_calls == ([] if expected else ["learner", "learner"])


def test_a_learner_chooses_the_backends_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []
    place = "rocstar.engine.inference.embedded.attention.choose_attention_backends"
    monkeypatch.setattr(place, asked.append)
    PolicyModel(build_model(ScratchConfig(), 300, seed=0))
    assert asked == [torch.device("cpu")]
