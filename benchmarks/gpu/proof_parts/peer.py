"""Peer: the loss of the 14B head by other means, one way in each process, at the best known setting.

Legend: N rows, D hidden size, V vocabulary; h (N, D) hidden states, w (V, D) the head's weight, t its rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from gpu.cases import Rows
from gpu.ways import compilable_loss, naive
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rocstar.kernels.linear_loss import linear_loss

from .head_inputs import head_inputs, shape_of
from .part import Part, out_of_memory
from .results import Peer

CHUNK = 2048
Way = Callable[[Tensor, Tensor, Rows], list[Tensor]]


def measure(part: Part) -> None:
    result: Peer = part.result
    result.way = part.which
    way = WAYS[part.which]
    shape = shape_of(part)
    hidden, weight, rows = head_inputs(part, shape)
    if way in NEED_DEVICE and not part.on_device:
        result.left_out = "needs a device"
        part.save()
        return
    try:
        gradients = way(hidden, weight, rows)
        if way not in OTHER_LOSS:
            result.gradient_error = gradient_error(gradients[1], hidden, weight, rows)
        del gradients
        result.ms = part.milliseconds(lambda: way(hidden, weight, rows), repeats=3)
        result.tflops = shape.flop / result.ms / 1e9
        result.peak_gib = part.peak_gib(lambda: way(hidden, weight, rows))
    except torch.OutOfMemoryError as error:
        result.left_out = out_of_memory(error)
    except ImportError as error:
        result.left_out = f"not installed: {str(error).splitlines()[0]}"
    part.save()


def gradient_error(found: Tensor, hidden: Tensor, weight: Tensor, rows: Rows) -> float:
    """Of the weight's gradient, against rocstar's."""
    loss, _ = linear_loss(hidden, weight, rows.ids_N, rows.loss_of)
    (wanted,) = torch.autograd.grad(loss, (weight,))
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


def chunked(h: Tensor, w: Tensor, t: Rows) -> list[Tensor]:
    """Plain torch, some rows at a time, each chunk run again in backward."""

    def of_chunk(hidden: Tensor, ids: Tensor, advantages: Tensor, weights: Tensor) -> Tensor:
        return compilable_loss(hidden, w, Rows(ids_N=ids, advantages_N=advantages, weights_N=weights))

    columns = (h, t.ids_N, t.advantages_N, t.weights_N)
    chunks = zip(*(column.split(CHUNK) for column in columns), strict=True)
    loss = torch.stack([checkpoint(of_chunk, *chunk, use_reentrant=False) for chunk in chunks]).sum()
    return list(torch.autograd.grad(loss, (h, w)))


def compiled(h: Tensor, w: Tensor, t: Rows) -> list[Tensor]:
    """Plain torch over all rows, through torch.compile."""
    return list(torch.autograd.grad(COMPILED(h, w, t), (h, w)))


COMPILED = torch.compile(compilable_loss, dynamic=False)


def liger_cross_entropy(h: Tensor, w: Tensor, t: Rows) -> list[Tensor]:
    """Liger's fused linear cross-entropy: the mean negative log-prob, without advantages or ratios."""
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    out = liger_fused_linear_cross_entropy(h, w, t.ids_N)
    return list(torch.autograd.grad(out[0] if isinstance(out, tuple) else out, (h, w)))


def liger_per_token(h: Tensor, w: Tensor, t: Rows) -> list[Tensor]:
    """Liger's newest: log-probs of single tokens through the head, the loss in plain torch."""
    from liger_kernel.ops import LigerFusedLinearScaledCrossEntropyFunction

    nll, _ = LigerFusedLinearScaledCrossEntropyFunction.apply(h, w, t.ids_N, 1.0, -100, 1, True)
    loss = t.loss_of(-nll, slice(None)).sum()
    return list(torch.autograd.grad(loss, (h, w)))


WAYS: dict[str, Way] = {
    "torch": naive,
    "torch chunked": chunked,
    "torch compiled": compiled,
    "Liger cross-entropy": liger_cross_entropy,
    "Liger per token": liger_per_token,
}
NEED_DEVICE = {compiled, liger_cross_entropy, liger_per_token}
OTHER_LOSS = {liger_cross_entropy}
