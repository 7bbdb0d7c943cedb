"""Rows that begin alike are computed once where they do, and the update is that of every row by itself."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rocstar.train.algorithm.off_policy import Correction
from rocstar.train.learner.batch import MicroBatch, empty_microbatch, pack
from rocstar.train.learner.example import Example
from rocstar.train.learner.learner import Learner, LossSettings
from rocstar.train.learner.optim import OptimSpec
from rocstar.train.learner.scratch import build_model
from rocstar.train.recipe.model_config import ScratchConfig

torch.set_num_threads(1)

VOCAB = 12
SETTINGS = LossSettings(temperature=0.7, clip_low=0.2, clip_high=0.28, correction=Correction.token)


@st.composite
def siblings(draw: st.DrawFn) -> list[Example]:
    """Rows over few ids, so that beginnings agree often, and some rows whole."""
    made = []
    for k in range(draw(st.integers(1, 8))):
        ids = [1, *draw(st.lists(st.integers(0, 2), min_size=1, max_size=12))]
        mask = [0, *draw(st.lists(st.integers(0, 1), min_size=len(ids) - 1, max_size=len(ids) - 1))]
        made.append(
            Example(
                ids=ids,
                mask=mask,
                weights=[(k + 1) / 10 * m for m in mask],
                rollout_logprobs=[-1.0 if m else None for m in mask],
                advantage=float(k - 2),
                name=f"row{k}",
            )
        )
    return made


def test_a_small_shared_beginning_is_not_worth_a_mask() -> None:
    def row(name: int) -> Example:
        mask = [0] + [1] * 20
        return Example(
            ids=[7, *[name] * 20], mask=mask, weights=mask, rollout_logprobs=[-1.0] * 21, advantage=1.0
        )

    (micro,) = pack([row(1), row(2)], tokens_per_microbatch=8192)
    assert micro.shared_S == [0, 0] and micro.lengths_S == [20, 20]


def learner() -> Learner:
    sizes = ScratchConfig(hidden_size=16, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=24)
    model = build_model(sizes, VOCAB, seed=0).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8.0)
    made = Learner(model)
    made.use(OptimSpec(kind="adamw", lr=1e-3, weight_decay=0.0, grad_clip=math.inf, warmup_steps=0))
    return made


def gradient(made: Learner, micros: list[MicroBatch]) -> dict[str, Tensor]:
    made.optimizers.zero_grad()
    for micro in micros:
        made.policy_backward(micro, None, SETTINGS)
    return {name: p.grad.clone() for name, p in made.model.named_parameters() if p.grad is not None}


@settings(max_examples=15, deadline=None)
@given(examples=siblings())
def test_together_they_give_the_gradient_of_each_row_by_itself(examples: list[Example]) -> None:
    """In float64, but for the rotary tables and the softmax statistics, which are float32."""
    made = learner()
    together = gradient(made, pack(examples, tokens_per_microbatch=8192))
    apart = gradient(made, [micro for e in examples for micro in pack([e], tokens_per_microbatch=8192)])
    assert together.keys() == apart.keys()
    for name, expected in apart.items():
        torch.testing.assert_close(
            together[name], expected, atol=1e-6, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_a_rank_without_tokens_has_every_gradient() -> None:
    made = learner()
    found = gradient(made, [empty_microbatch()])
    assert found.keys() == dict(made.model.named_parameters()).keys()
    assert not any(grad.any() for grad in found.values())


@pytest.mark.parametrize("common", [0, 1, 7, 8, 9])
def test_the_common_beginning_is_found(common: int) -> None:
    from rocstar.train.learner.batch import _common

    a, b = np.array([5] * common + [1] * 4), np.array([5] * common + [2] * 9)
    assert _common(a, b) == common and _common(a, a) == len(a) and _common(a[:0], b) == 0
