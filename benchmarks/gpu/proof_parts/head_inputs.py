"""Inputs of the 14B head, for rocstar and for its peers: the same numbers in every process.

Legend: N rows, D hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from gpu.cases import Rows
from torch import Tensor

from .part import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    tokens: int
    hidden: int
    vocabulary: int

    @property
    def flop(self) -> float:
        """FLOPs of the three products: logits, gradient of the hidden states, gradient of the weight."""
        return 6.0 * self.tokens * self.hidden * self.vocabulary


HEAD_14B = HeadShape(tokens=20_480, hidden=5120, vocabulary=151_936)
TOY_HEAD = HeadShape(tokens=256, hidden=64, vocabulary=2000)


def shape_of(part: Part) -> HeadShape:
    return HEAD_14B if part.on_device else TOY_HEAD


def head_inputs(part: Part, shape: HeadShape) -> tuple[Tensor, Tensor, Rows]:
    """Hidden states (N, D) and weight (V, D) that need gradients, and rows without old log-probs."""
    device, generator, dtype = part.device, part.generator(), part.dtype

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, device=device, generator=generator)

    hidden = normal(shape.tokens, shape.hidden).to(dtype).requires_grad_(True)
    weight = (normal(shape.vocabulary, shape.hidden) / shape.hidden**0.5).to(dtype).requires_grad_(True)
    rows = Rows(
        ids_N=torch.randint(0, shape.vocabulary, (shape.tokens,), device=device, generator=generator),
        weights_N=torch.full((shape.tokens,), 1 / shape.tokens, device=device),
        advantages_N=normal(shape.tokens),
    )
    return hidden, weight, rows
