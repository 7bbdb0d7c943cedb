"""Head: the loss of a 14B head at 20,480 tokens, beside the rates of copies and products measured here.

Legend: N rows, D hidden size, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from rocstar.kernels import torch_ops
from rocstar.kernels.linear_loss import linear_loss

from .head_inputs import HeadShape, head_inputs, shape_of
from .parity import config_name, launch_configs
from .part import Part, dtype_name, out_of_memory
from .results import Chunked, Head, Product, RowKernel

Action = Callable[[], object]

PRODUCT_ROWS = 4096
"""Rows of a chunk at which products and row kernels are timed."""
COPIED = 1 << 30
CHUNK_ROWS = (None, 4096, 8192, 16_384, 20_480)
TOY_CHUNK_ROWS = (None, 64)
LEAST_S = 12
"""A chunk size takes as long, its compilation included."""


def measure(part: Part) -> None:
    result: Head = part.result
    shape = shape_of(part)
    result.dtype = dtype_name(part.dtype)
    result.tokens, result.hidden, result.vocabulary = shape.tokens, shape.hidden, shape.vocabulary
    result.copy_bytes_per_s = copy_rate(part)
    part.save()
    hidden, weight, rows = head_inputs(part, shape)
    chunk = min(PRODUCT_ROWS, shape.tokens)
    logits = torch.empty(chunk, shape.vocabulary, device=part.device, dtype=part.dtype).normal_()
    result.products = products(part, shape, hidden.detach()[:chunk], weight.detach(), logits)
    result.product_tflops = max(p.tflops for p in result.products if p.tflops and "float32" not in p.name)
    part.save()
    result.row_kernels = row_kernels(part, logits, rows.ids_N[:chunk])
    part.save()
    del logits

    def once(chunk_rows: int | None) -> tuple[Tensor, ...]:
        loss, _ = linear_loss(hidden, weight, rows.ids_N, rows.loss_of, grad_output=1.0, chunk_rows=chunk_rows)
        return torch.autograd.grad(loss, (hidden, weight))

    for chunk_rows in CHUNK_ROWS if part.on_device else TOY_CHUNK_ROWS:
        row = Chunked(chunk_rows=chunk_rows)
        result.chunks.append(row)
        if part.left() < LEAST_S and part.on_device:
            row.left_out = "time"
            continue
        action = functools.partial(once, chunk_rows)
        try:
            row.ms, row.peak_gib = part.milliseconds(action), part.peak_gib(action)
        except torch.OutOfMemoryError as error:
            row.left_out = out_of_memory(error)
            continue
        row.tflops = shape.flop / row.ms / 1e9
        row.share_of_product_rate = row.tflops / result.product_tflops
        if chunk_rows is None:
            result.ms, result.share_of_product_rate = row.ms, row.share_of_product_rate
        part.save()


def copy_rate(part: Part) -> float:
    """Bytes per second, read and written."""
    source = torch.ones(COPIED if part.on_device else 1 << 20, dtype=torch.bfloat16, device=part.device)
    target = torch.empty_like(source)
    return 2e3 * source.nbytes / part.milliseconds(lambda: target.copy_(source))


def products(part: Part, shape: HeadShape, hidden: Tensor, weight: Tensor, logits: Tensor) -> list[Product]:
    """The products of one chunk in the layouts of `linear_loss`, and two with float32 results."""
    flop = 2.0 * len(hidden) * shape.hidden * shape.vocabulary
    dhidden, dweight = torch.empty_like(hidden), torch.empty_like(weight)
    actions = {
        "logits NT": lambda: torch.mm(hidden, weight.T, out=logits),
        "hidden gradient NN": lambda: torch.mm(logits, weight, out=dhidden),
        "weight gradient TN": lambda: torch.mm(logits.T, hidden, out=dweight),
    }
    found = []
    for name, action in actions.items():
        took = part.milliseconds(action)
        found.append(Product(name=name, ms=took, tflops=flop / took / 1e9))
    wide = {
        "logits NT, float32 result": lambda: torch.mm(hidden, weight.T, out_dtype=torch.float32),
        "weight gradient TN, float32 result": lambda: torch.mm(logits.T, hidden, out_dtype=torch.float32),
    }
    for name, action in wide.items():
        if not part.on_device:
            found.append(Product(name=name, left_out="needs a device"))
            continue
        took = part.milliseconds(action)
        found.append(Product(name=name, ms=took, tflops=flop / took / 1e9))
    return found


def row_kernels(part: Part, logits: Tensor, ids: Tensor) -> list[RowKernel]:
    """The row kernels alone, per launch config; on a CPU the torch operations. `logits` changes."""
    copy_rate: float = part.result.copy_bytes_per_s
    num_bytes, found = logits.nbytes, []
    for name, (stats, gradient) in kernel_actions(part, logits, ids).items():
        stats_ms, gradient_ms = part.milliseconds(stats), part.milliseconds(gradient)
        found.append(
            RowKernel(
                config=name,
                stats_ms=stats_ms,
                stats_share_of_copy=1e3 * num_bytes / stats_ms / copy_rate,
                gradient_ms=gradient_ms,
                gradient_share_of_copy=2e3 * num_bytes / gradient_ms / copy_rate,
            )
        )
    return found


def kernel_actions(part: Part, logits: Tensor, ids: Tensor) -> dict[str, tuple[Action, Action]]:
    """By config: the statistics of all rows, and the gradient in place of the logits."""
    if not part.on_device:
        run = functools.partial(torch_ops.row_loss_, logits, ids, lambda logprobs, _: -logprobs, temperature=1.0)
        return {"torch": (functools.partial(run, grad=False), functools.partial(run, grad=True))}
    from rocstar.kernels import triton_ops

    logprobs, entropy, maximum, log_sum = (torch.empty(len(ids), device=part.device) for _ in range(4))
    slope = torch.full((len(ids),), 1e-3, device=part.device)
    return {
        config_name(config): (
            functools.partial(
                triton_ops.launch_row_stats,
                *(logits, ids, logprobs, entropy, maximum, log_sum, 1.0), config=config,
            ),
            functools.partial(
                triton_ops.launch_dlogits_, logits, logits, ids, maximum, log_sum, slope, 1.0, config=config,
            ),
        )
        for config in launch_configs(part.device)
    }  # fmt: skip
