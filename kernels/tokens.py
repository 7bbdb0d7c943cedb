"""What goes into the loss of a token and what comes out, for every implementation of it.

Legend: N rows of a microbatch, one per predicted token; V vocabulary. Log-probs are natural logarithms of
softmax(logits / temperature), in float32 (float64 only where the logits are).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # exp(89) overflows float32, and the gradient of a dropped infinity is NaN

CLIP_MASKED = -1  # weight 0: the row was never read
CLIP_NONE = 0
CLIP_LOW = 1
CLIP_HIGH = 2
CLIP_DUAL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpec:
    """The constants of the objective; see `reference.py` for the formula.

    Raises:
        ValueError: a constant that makes no objective.
    """

    temperature: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    kl_coef: float = 0.0
    entropy_coef: float = 0.0

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ValueError(f"temperature must be positive and finite, got {self.temperature}")
        if not (
            0 <= self.clip_low < 1 and self.clip_high >= 0 and (self.dual_clip is None or self.dual_clip > 1)
        ):
            raise ValueError(
                "need 0 <= clip_low < 1, clip_high >= 0 and dual_clip > 1 (or none), "
                f"got clip_low={self.clip_low}, clip_high={self.clip_high}, dual_clip={self.dual_clip}"
            )
        if not (math.isfinite(self.kl_coef) and self.kl_coef >= 0 and math.isfinite(self.entropy_coef)):
            raise ValueError(
                "need kl_coef >= 0 and a finite entropy_coef, "
                f"got kl_coef={self.kl_coef}, entropy_coef={self.entropy_coef}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What is known of each row besides its logits. All tensors have shape (N,) and are constants.

    Invariant: a row with weight 0 contributes nothing, and none of its other values is looked at.
    """

    ids_N: Tensor
    """int64: the token whose log-prob counts."""
    weights_N: Tensor
    """The share of the row in the loss. It carries the normalisation; 0 masks the row."""
    advantages_N: Tensor
    old_logprobs_N: Tensor | None = None
    """Log-probs at the start of the batch. None: the ratio is exactly 1."""
    ref_logprobs_N: Tensor | None = None
    """Log-probs of the reference policy; looked at only if `kl_coef` is not 0."""
    tis_N: Tensor | None = None
    """A factor on the surrogate alone: truncated importance weights, or 0 where IcePop drops a token."""

    def per_row(self) -> dict[str, Tensor]:
        """The tensors that are there, by field name."""
        named = {name: getattr(self, name) for name in Tokens.__slots__}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def select(self, rows_L: Tensor) -> Tokens:
        """The same for some of the rows."""
        return Tokens(**{name: tensor[rows_L] for name, tensor in self.per_row().items()})

    def check(self, num_rows: int, vocabulary: int, spec: LossSpec) -> None:
        """Look at all rows with weight; waits for the device once.

        Raises:
            ValueError: a shape or a type that does not fit, an id outside the vocabulary, NaN or infinity,
                or a KL term without a reference.
        """
        tensors = self.per_row()
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if set(shapes.values()) != {(num_rows,)}:
            raise ValueError(f"need one value per row, ({num_rows},), got {shapes}")
        for name, tensor in tensors.items():
            allowed = (torch.int64,) if name == "ids_N" else (torch.float32, torch.float64)
            if tensor.dtype not in allowed:
                raise ValueError(f"{name} must be {' or '.join(map(str, allowed))}, got {tensor.dtype}")
        if spec.kl_coef and self.ref_logprobs_N is None:
            raise ValueError(f"kl_coef={spec.kl_coef} needs ref_logprobs_N, got none")
        if not num_rows:
            return
        live_N = self.weights_N != 0
        fine = {name: (tensor.isfinite() | ~live_N).all() for name, tensor in tensors.items()}
        fine["ids_N"] = (((self.ids_N >= 0) & (self.ids_N < vocabulary)) | ~live_N).all()
        verdicts = torch.stack(list(fine.values())).tolist()
        bad = [name for name, good in zip(fine, verdicts, strict=True) if not good]
        if "ids_N" in bad:
            worst = self.ids_N[live_N]
            raise ValueError(
                f"token ids from {int(worst.min())} to {int(worst.max())} do not fit the head's vocabulary "
                f"of {vocabulary}; is the tokenizer the model's own?"
            )
        if bad:
            raise ValueError(f"NaN or infinity in {', '.join(bad)}")


TisOf = Callable[[Tensor, Tensor], Tensor]
"""(log-probs, row numbers) -> the factors `tis_N` of these rows; pure, and no gradient runs through it. For a
correction by the log-probs of this very forward, known only between a row's statistics and its gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStats:
    """What happened to each row, detached, shape (N,).

    A row with weight 0 was never read: NaN, loss 0, CLIP_MASKED. A row whose log-prob is not finite has loss
    NaN and gradient NaN, so that it cannot pass for a number.
    """

    logprobs_N: Tensor
    entropy_N: Tensor
    """Nats, of softmax(logits / temperature)."""
    ratio_N: Tensor
    """current / old, within exp(+-MAX_LOG_RATIO)."""
    clip_code_N: Tensor
    """int8: CLIP_MASKED, CLIP_NONE, CLIP_LOW, CLIP_HIGH or CLIP_DUAL. A clipped token's surrogate has no
    gradient."""
    loss_N: Tensor
    """With the weight: the loss is the sum."""

    @classmethod
    def unread(cls, num_rows: int, *, dtype: torch.dtype, device: torch.device) -> TokenStats:
        """The stats of rows that nobody has looked at."""
        nan_N = torch.full((num_rows,), math.nan, dtype=dtype, device=device)
        return cls(
            logprobs_N=nan_N,
            entropy_N=nan_N.clone(),
            ratio_N=nan_N.clone(),
            clip_code_N=torch.full((num_rows,), CLIP_MASKED, dtype=torch.int8, device=device),
            loss_N=torch.zeros(num_rows, dtype=dtype, device=device),
        )

    def put(self, rows_L: Tensor, part: TokenStats) -> None:
        """Fill in some of the rows."""
        for name in TokenStats.__slots__:
            getattr(self, name)[rows_L] = getattr(part, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStats:
    """What one pass over a row, or over a shard of its vocabulary, has to remember; shape (N,), float32.

        max = max_c x_c    z_c = (x_c - max) / T    sum = Σ_c e^z_c    weighted = Σ_c z_c e^z_c

    Everything is relative to the raw maximum: log-sum-exp minus a mean would lose 1e-4 of entropy at logits
    around 3000. Shards merge with `merge_row_stats`. A row without weight was never read: NaN.
    """

    max_N: Tensor
    sum_N: Tensor
    weighted_N: Tensor
    target_N: Tensor
    """The raw logit of the row's token; -inf if the token is in another shard."""

    def log_sum_N(self) -> Tensor:
        return self.sum_N.log()

    def logprobs_N(self, temperature: float) -> Tensor:
        return (self.target_N - self.max_N) / temperature - self.log_sum_N()

    def entropy_N(self) -> Tensor:
        return self.log_sum_N() - self.weighted_N / self.sum_N


def merge_row_stats(shards: list[RowStats], temperature: float) -> RowStats:
    """The stats of whole rows from those of the shards of their vocabulary, in any order.

    Assumes that every token lies in exactly one shard.
    """
    max_N = torch.stack([shard.max_N for shard in shards]).amax(0)
    sum_N, weighted_N = torch.zeros_like(max_N), torch.zeros_like(max_N)
    for shard in shards:
        below_N = (shard.max_N - max_N) / temperature
        scale_N = below_N.exp()
        sum_N += shard.sum_N * scale_N
        weighted_N += (shard.weighted_N + shard.sum_N * below_N) * scale_N
    target_N = torch.stack([shard.target_N for shard in shards]).amax(0)
    return RowStats(max_N=max_N, sum_N=sum_N, weighted_N=weighted_N, target_N=target_N)
