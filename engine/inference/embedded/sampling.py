"""How the embedded engine draws tokens. Shapes: N rows, V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rocstar.engine.seeds import uniforms

try:
    from rocstar.engine.inference.embedded import _decode
except ImportError:  # not built: torch does the same, slower
    _decode = None  # type: ignore[assignment]

BROKEN = "the model's logits are not finite: its weights are broken"


def noise(seeds: Sequence[int], positions: Sequence[int]) -> Tensor:
    """One uniform number in [0, 1) per row, a function of (seed, position) alone (contract 4)."""
    return torch.from_numpy(uniforms(np.array(seeds, np.uint64), np.array(positions, np.uint64)))


def sample(logits_NV: Tensor, temperatures_N: Sequence[float], noise_N: Tensor) -> tuple[list[int], list[float]]:
    """Tokens by inverse CDF of one uniform each, and fp32 log_softmax(logits / T) at them.

    Temperature 0 is greedy; its log-probs are those of T = 1. A token of probability 0 is never drawn.
    FloatingPointError if a row's logits are not finite: such a model has no distribution.
    """
    if _decode is not None and logits_NV.device.type == "cpu":
        return _sample_native(logits_NV.float().contiguous(), temperatures_N, noise_N)
    temperatures = torch.tensor(temperatures_N, device=logits_NV.device)[:, None]
    greedy = temperatures == 0
    logits_NV = logits_NV.float()
    if any(t not in (0.0, 1.0) for t in temperatures_N):
        logits_NV = logits_NV / torch.where(greedy, 1.0, temperatures)
    logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
    cdf_NV = logprobs_NV.exp().cumsum_(-1)
    total = cdf_NV[:, -1:]
    if not bool(total.isfinite().all()):
        raise FloatingPointError(BROKEN)
    drawn = torch.searchsorted(cdf_NV, noise_N.to(cdf_NV)[:, None] * total, right=True)
    # Rounding can push the target up to the total: step back to the token where the CDF reaches it.
    last = torch.searchsorted(cdf_NV, total.contiguous())
    tokens = torch.minimum(drawn, last)
    if 0.0 in temperatures_N:
        tokens = torch.where(greedy, logprobs_NV.argmax(-1, keepdim=True), tokens)
    return tokens[:, 0].tolist(), logprobs_NV.gather(-1, tokens)[:, 0].tolist()


def _sample_native(
    logits_NV: Tensor, temperatures_N: Sequence[float], noise_N: Tensor
) -> tuple[list[int], list[float]]:
    """The same in csrc/attend/sample.cpp, row by row."""
    num_rows, vocabulary = logits_NV.shape
    temperatures, noise_N = torch.tensor(temperatures_N, dtype=torch.float32), noise_N.double().contiguous()
    tokens, logprobs = torch.empty(num_rows, dtype=torch.int64), torch.empty(num_rows)
    inputs = (logits_NV.data_ptr(), vocabulary, temperatures.data_ptr(), noise_N.data_ptr())
    if not _decode.sample(*inputs, tokens.data_ptr(), logprobs.data_ptr(), 0, num_rows):
        raise FloatingPointError(BROKEN)
    return tokens.tolist(), logprobs.tolist()
