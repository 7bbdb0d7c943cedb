"""Peer: the loss of the 14B head by other means (ways.py), one in each process.

Legend: N rows, D hidden size, V vocabulary; h (N, D) hidden states, w (V, D) the head's weight, t its rows.
"""

from __future__ import annotations

import torch
from gpu.cases import Rows
from gpu.ways import peers
from torch import Tensor

from rocstar.kernels.linear_loss import linear_loss

from .head_inputs import head_inputs, shape_of
from .part import Part, out_of_memory
from .results import Peer


def measure(part: Part) -> None:
    result: Peer = part.result
    result.way = part.which
    (way,) = (peer for peer in peers(on_gpu=part.on_device) if peer.name == part.which)
    if way.skipped:
        result.left_out = way.skipped
        part.save()
        return
    shape = shape_of(part)
    h, w, t = head_inputs(part, shape)

    def once() -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return way.run(h, w, t.ids_N, t)

    try:
        _, (_, dweight) = once()
        if way.is_policy_loss:
            result.gradient_error = gradient_error(dweight, h, w, t)
        del dweight
        result.ms = part.milliseconds(once, repeats=3)
        result.tflops = shape.flop / result.ms / 1e9
        result.peak_gib = part.peak_gib(once)
    except torch.OutOfMemoryError as error:
        result.left_out = out_of_memory(error)
    part.save()


def gradient_error(found: Tensor, h: Tensor, w: Tensor, t: Rows) -> float:
    """Error of the weight's gradient against rocstar's."""
    loss, _ = linear_loss(h, w, t.ids_N, t.loss_of)
    (wanted,) = torch.autograd.grad(loss, (w,))
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())
