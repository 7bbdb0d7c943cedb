"""Rows that begin alike are computed once where they do, and the update is that of every row by itself."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rocstar.train.algorithm.off_policy import Correction
from rocstar.train.learner.batch import MicroBatch, _common, pack
from rocstar.train.learner.example import Example
from rocstar.train.learner.learner import Learner, LossSettings
from rocstar.train.learner.scratch import build_model
from rocstar.train.recipe.model_config import ScratchConfig

from ...fakes.tiny import ADAMW, CLIP, make_example, scale_matrices

VOCAB = 12
SETTINGS = LossSettings(temperature=0.7, loss=CLIP, correction=Correction.token)


@st.composite
def siblings(draw: st.DrawFn) -> list[Example]:
    """Rows over few ids, so that beginnings agree often, and some rows whole."""
    made = []
    for k in range(draw(st.integers(1, 8))):
        ids = [1, *draw(st.lists(st.integers(0, 2), min_size=1, max_size=12))]
        mask = [0, *draw(st.lists(st.integers(0, 1), min_size=len(ids) - 1, max_size=len(ids) - 1))]
        logprobs = [-1.0 if m else None for m in mask]
        row = make_example(
            ids, mask, weight=(k + 1) / 10, rollout_logprobs=logprobs, advantage=float(k - 2), name=f"row{k}"
        )
        made.append(row)
    return made


def test_a_small_shared_beginning_is_not_worth_a_mask() -> None:
    rows = [make_example([7, *[name] * 20], [0] + [1] * 20) for name in (1, 2)]
    (micro,) = pack(rows, tokens_per_microbatch=8192)
    assert micro.shared_S == [0, 0] and micro.lengths_S == [20, 20]


def learner() -> Learner:
    sizes = ScratchConfig(hidden_size=16, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=24)
    model = build_model(sizes, VOCAB, seed=0).double()
    scale_matrices(model)
    made = Learner(model)
    made.use(ADAMW)
    return made


def gradient(made: Learner, micros: list[MicroBatch]) -> dict[str, Tensor]:
    made.optimizers.zero_grad()
    for micro in micros:
        made.policy_backward(micro, SETTINGS)
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
        torch.testing.assert_close(together[name], expected, atol=1e-6, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("common", [0, 1, 7, 8, 9])
def test_the_common_beginning_is_found(common: int) -> None:
    a, b = np.array([5] * common + [1] * 4), np.array([5] * common + [2] * 9)
    assert _common(a, b) == common and _common(a, a) == len(a) and _common(a[:0], b) == 0
