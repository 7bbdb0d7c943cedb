"""Models, examples and optimizers that are built in milliseconds."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rocstar.train.algorithm.loss import PolicyTokens
from rocstar.train.algorithm.losses.clip import Clip
from rocstar.train.learner.example import Example
from rocstar.train.learner.optim import OptimSpec
from rocstar.train.recipe.model_config import ScratchConfig

SCRATCH = ScratchConfig(hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=64)
SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 2,
}
"""Fields of a configuration of transformers."""
CLIP = Clip(clip_low=0.2, clip_high=0.28)
ADAMW = OptimSpec(kind="adamw", lr=1e-2, weight_decay=0.1, grad_clip=1.0, warmup_steps=0)


def make_example(
    ids: Sequence[int], mask: Sequence[int], *, weight: float = 1.0, advantage: Any = 1.0, **fields: Any
) -> Example:
    """Return an example whose loss tokens weigh `weight` each."""
    return Example(ids=ids, mask=mask, weights=[weight * m for m in mask], advantage=advantage, **fields)


def policy_tokens(
    logprobs_T: Tensor, *, lengths_S: Sequence[int] | None = None, **given: Tensor | None
) -> PolicyTokens:
    """Return tokens of advantage 1, by default at the batch start, as the rollout sampled them."""
    now_T = logprobs_T.detach()
    defaults: dict[str, Tensor] = {
        "old_logprobs_T": now_T,
        "rollout_logprobs_T": now_T,
        "advantages_T": torch.ones_like(now_T),
        "after_tool_T": torch.zeros_like(now_T, dtype=torch.bool),
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    return PolicyTokens(logprobs_T=logprobs_T, lengths_S=lengths_S, **(defaults | chosen))


def scale_matrices(model: nn.Module) -> None:
    """Make the weights so large that the output is far from uniform."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8.0)


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    for (name, weight), expected in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(weight, expected), name
