"""The same loss by other means: naive torch, compiled torch, Liger's chunked GRPO.

Legend: N rows, D hidden size, V vocabulary; h (N, D) hidden states, w (V, D) the head's weight, t tokens.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from rocstar.train.algorithm.loss import logprobs_and_entropy

from .cases import Rows

CLIP_LOW, CLIP_HIGH = 0.2, 0.28


def peer_ways(*, on_gpu: bool) -> dict[str, Callable[..., list[Tensor]]]:
    """Gradients of hidden states and weight, by name. Without a GPU naive torch alone."""
    ways: dict[str, Callable[..., list[Tensor]]] = {"naive torch": naive}
    if not on_gpu:
        return ways
    compiled = torch.compile(compilable_loss, dynamic=False)
    ways["compiled torch"] = lambda h, w, t: list(torch.autograd.grad(compiled(h, w, t), (h, w)))
    if importlib.util.find_spec("liger_kernel") is not None:
        for chunk_size, is_compiled in ((1, True), (4, True), (16, True), (1, False)):
            name = f"Liger chunk_size={chunk_size} compiled={is_compiled}"
            ways[name] = functools.partial(liger, chunk_size=chunk_size, is_compiled=is_compiled)
    return ways


def liger(h: Tensor, w: Tensor, t: Rows, *, chunk_size: int, is_compiled: bool) -> list[Tensor]:
    """Liger's chunked GRPO: 16 sequences of N / 16 rows, one advantage per sequence."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    loss = LigerFusedLinearGRPOLoss(
        beta=0.0, use_ref_model=False, epsilon_low=CLIP_LOW, epsilon_high=CLIP_HIGH,
        loss_type="dapo", temperature=1.0, chunk_size=chunk_size, compiled=is_compiled,
    )  # fmt: skip
    sequences = 16
    result = loss(
        h.view(sequences, -1, h.shape[1]), w, t.ids_N.view(sequences, -1),
        (t.weights_N != 0).long().view(sequences, -1), t.advantages_N[:sequences].clone(),
    )  # fmt: skip
    value = result[0] if isinstance(result, tuple) else result
    return list(torch.autograd.grad(value, (h, w)))


def through_logits(hidden: Tensor, weight: Tensor, tokens: Rows) -> Tensor:
    """The loss by log_softmax and autograd, over all rows."""
    logprobs, _ = logprobs_and_entropy(hidden @ weight.T, tokens.ids_N, 1.0)
    return tokens.loss_of(logprobs, slice(None)).sum()


def naive(hidden: Tensor, weight: Tensor, tokens: Rows) -> list[Tensor]:
    return list(torch.autograd.grad(through_logits(hidden, weight, tokens), (hidden, weight)))


def compilable_loss(hidden: Tensor, weight: Tensor, tokens: Rows) -> Tensor:
    """The same without the checks that look at values, which a compiler cannot follow."""
    log_p = torch.log_softmax((hidden @ weight.T).float(), dim=-1)
    logprobs = log_p.gather(-1, tokens.ids_N[:, None])[:, 0]
    ratio = (logprobs - logprobs.detach()).exp()
    clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
    a = tokens.advantages_N
    return -(tokens.weights_N * torch.minimum(ratio * a, clipped * a)).sum()
