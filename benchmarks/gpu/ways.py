"""The same loss by other means: torch whole and in chunks, both compiled, and Liger's kernels.

Legend: N rows, D hidden size, V vocabulary; h (N, D) hidden states, w (V, D) the head's weight.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rocstar.train.algorithm.loss import logprobs_and_entropy

from .cases import Rows

CLIP_LOW, CLIP_HIGH = 0.2, 0.28
CHUNK_ROWS = 4096

Run = Callable[[Tensor, Tensor, Tensor, Rows], tuple[Tensor, tuple[Tensor, Tensor]]]
"""(h, w, ids_N, rows) -> the loss, and its gradients in h and w."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One other implementation."""

    name: str
    run: Run
    skipped: str = ""
    """Why it cannot run here; empty if it can."""
    is_policy_loss: bool = True
    """Whether its loss is that of `Rows.loss_of`; else a simpler one, of the same matrix products."""


def peers(*, on_gpu: bool) -> list[Peer]:
    """All of them, those that cannot run here with the reason. Compilers and Liger's kernels want a GPU."""
    alone = "" if on_gpu else "it is compared on a GPU alone"
    liger = alone or _missing("liger_kernel")
    found = [
        Peer(name="naive torch", run=_by_autograd(through_logits)),
        Peer(name="chunked torch", run=_by_autograd(functools.partial(in_chunks, logprobs_of=_logprobs))),
        Peer(name="compiled torch", run=_by_autograd(_compiled_whole), skipped=alone),
        Peer(name="compiled chunked torch", run=_by_autograd(_compiled_chunks), skipped=alone),
        Peer(
            name="Liger per-token cross-entropy", run=_by_autograd(_liger_per_token), skipped=liger or _why_no_cute()
        ),
    ]
    # Liger's default takes as many logits as there are hidden numbers; more memory makes it faster.
    found += [
        Peer(
            name=f"Liger cross-entropy budget={budget}",
            run=_by_autograd(functools.partial(_liger_cross_entropy, budget=budget)),
            skipped=liger,
            is_policy_loss=False,
        )
        for budget in (1, 8)
    ]
    found += [
        Peer(
            name=f"Liger GRPO chunk_size={size}",
            run=_by_autograd(functools.partial(_liger_grpo, chunk_size=size)),
            skipped=liger,
        )
        for size in (1, 16)
    ]
    return found


def _missing(module: str) -> str:
    return "" if find_spec(module) is not None else f"{module} is not installed"


def _why_no_cute() -> str:
    """Liger's kernel for Hopper is written in the CuTe DSL; elsewhere it takes torch in chunks by itself."""
    if torch.version.hip or torch.cuda.get_device_capability() != (9, 0):
        return ""
    return _missing("cutlass")


def _by_autograd(loss_of: Callable[[Tensor, Tensor, Rows], Tensor]) -> Run:
    """Loss and gradients of a loss that torch differentiates."""

    def run(h: Tensor, w: Tensor, ids_N: Tensor, rows: Rows) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if ids_N is not rows.ids_N:
            raise ValueError("the ids must be those of the rows")
        loss = loss_of(h, w, rows)
        dh, dw = torch.autograd.grad(loss, (h, w))
        return loss.detach(), (dh, dw)

    return run


def through_logits(h: Tensor, w: Tensor, rows: Rows) -> Tensor:
    """The loss by log_softmax and autograd, over all rows."""
    logprobs_N, _ = logprobs_and_entropy(h @ w.T, rows.ids_N, 1.0)
    return rows.loss_of(logprobs_N, slice(None)).sum()


def _logprobs(h: Tensor, w: Tensor, ids_N: Tensor) -> Tensor:
    """Without checks that look at values, which a compiler cannot follow."""
    return torch.log_softmax((h @ w.T).float(), dim=-1).gather(-1, ids_N[:, None])[:, 0]


def in_chunks(h: Tensor, w: Tensor, rows: Rows, *, logprobs_of: Callable[..., Tensor]) -> Tensor:
    """Chunk by chunk of rows, logits made again in backward: what torch offers without kernels."""
    parts = [
        checkpoint(logprobs_of, h[k : k + CHUNK_ROWS], w, rows.ids_N[k : k + CHUNK_ROWS], use_reentrant=False)
        for k in range(0, len(h), CHUNK_ROWS)
    ]
    return rows.loss_of(torch.cat(parts), slice(None)).sum()


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    compiled: Callable[..., Tensor] = torch.compile(_logprobs, dynamic=False)
    return compiled


def _compiled_whole(h: Tensor, w: Tensor, rows: Rows) -> Tensor:
    return rows.loss_of(_compiled()(h, w, rows.ids_N), slice(None)).sum()


def _compiled_chunks(h: Tensor, w: Tensor, rows: Rows) -> Tensor:
    return in_chunks(h, w, rows, logprobs_of=_compiled())


def _liger_per_token(h: Tensor, w: Tensor, rows: Rows) -> Tensor:
    """Log-probs and entropy of each token; logits are never in memory, and made again in backward."""
    from liger_kernel.ops.fused_linear_scaled_cross_entropy import LigerFusedLinearScaledCrossEntropyFunction

    nll_N, _ = LigerFusedLinearScaledCrossEntropyFunction.apply(h, w, rows.ids_N, 1.0, -100, 1, True)
    return rows.loss_of(-nll_N, slice(None)).sum()


def _liger_cross_entropy(h: Tensor, w: Tensor, rows: Rows, *, budget: int) -> Tensor:
    """The plain sum of -log p: gradients in the forward, as here, but no weight per token."""
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    options: dict[str, Any] = {"reduction": "sum", "accum_dtype": torch.float32, "chunk_mem_const": budget}
    loss: Tensor = liger_fused_linear_cross_entropy(h, w, rows.ids_N, **options)
    return loss


def _liger_grpo(h: Tensor, w: Tensor, rows: Rows, *, chunk_size: int) -> Tensor:
    """Liger's chunked GRPO: 16 sequences of N / 16 rows, one advantage per sequence."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    loss = LigerFusedLinearGRPOLoss(
        beta=0.0, use_ref_model=False, epsilon_low=CLIP_LOW, epsilon_high=CLIP_HIGH,
        loss_type="dapo", temperature=1.0, chunk_size=chunk_size, compiled=True,
    )  # fmt: skip
    sequences = 16
    result = loss(
        h.view(sequences, -1, h.shape[1]), w, rows.ids_N.view(sequences, -1),
        (rows.weights_N != 0).long().view(sequences, -1), rows.advantages_N[:sequences].clone(),
    )  # fmt: skip
    value: Tensor = result[0] if isinstance(result, tuple) else result
    return value
