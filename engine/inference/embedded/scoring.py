"""How likely a given text is: its log-probs, a chunk of it in each forward.

    ScoreRequest.advance -> forward of a chunk, which attends to all before -> log_softmax at the next ids

A text has keys and values of its own, apart from the slots of those that decode, while it is scored.

Shapes: T tokens of a chunk, P tokens up to its end, H query heads, K key-value heads, D head size,
V vocabulary.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rocstar.engine.inference.base import PromptScores
from rocstar.engine.inference.embedded.attention import Forward, grouped_attention


class TextAttention:
    """Attention of one text to itself, chunk by chunk. Implements `Attention`."""

    def __init__(self) -> None:
        self._past: dict[int, tuple[Tensor, Tensor]] = {}
        """Keys and values_KPD of each layer."""

    def attend(self, layer: int, q_HTD: Tensor, k_KTD: Tensor, v_KTD: Tensor, scale: float) -> Tensor:
        if layer in self._past:
            before_k, before_v = self._past[layer]
            k_KTD, v_KTD = torch.cat([before_k, k_KTD], 1), torch.cat([before_v, v_KTD], 1)
        self._past[layer] = k_KTD, v_KTD
        size, upto = q_HTD.shape[1], k_KTD.shape[1]
        mask_TP = torch.ones(size, upto, dtype=torch.bool, device=q_HTD.device).tril_(upto - size)
        out_1HTD = grouped_attention(q_HTD[None], k_KTD[None], v_KTD[None], mask_TP, scale)
        return out_1HTD[0].transpose(0, 1)


@dataclass(slots=True, kw_only=True, eq=False)
class ScoreRequest:
    """A `score` call on its way. Invariant: every entry was computed under the weights of one version.

    Its methods are called in the device thread.
    """

    row_id: str
    ids: list[int]
    temperature: float
    device: torch.device
    future: asyncio.Future[PromptScores]
    num_failures: int = 0
    """How often memory ran out."""
    _at: int = 0
    _attention: TextAttention = field(default_factory=TextAttention)
    _logprobs: list[float] = field(default_factory=list)
    _best_ids: list[int] = field(default_factory=list)
    _best_logprobs: list[float] = field(default_factory=list)

    def advance(self, forward: Forward, num_tokens: int) -> bool:
        """Score the next `num_tokens` ids; return True if these were the last.

        FloatingPointError if the logits are not finite: such a model has no distribution.
        """
        end = min(self._at + num_tokens, len(self.ids) - 1)
        if self._at == end:  # one id, which has nothing before it
            return True
        ids_T = torch.tensor(self.ids[self._at : end], device=self.device)
        positions_T = torch.arange(self._at, end, device=self.device)
        logits_TV = forward(ids_T, positions_T, self._attention, end - self._at).float()
        if self.temperature not in (0.0, 1.0):
            logits_TV = logits_TV / self.temperature
        logprobs_TV = torch.log_softmax(logits_TV, dim=-1)
        best = logprobs_TV.max(-1)
        if not bool(best.values.isfinite().all()):
            raise FloatingPointError("the model's logits are not finite: its weights are broken")
        next_T1 = torch.tensor(self.ids[self._at + 1 : end + 1], device=self.device)[:, None]
        self._logprobs += logprobs_TV.gather(-1, next_T1)[:, 0].tolist()
        self._best_ids += best.indices.tolist()
        self._best_logprobs += best.values.tolist()
        self._at = end
        return end == len(self.ids) - 1

    def restart(self) -> None:
        """The weights changed: nothing that was computed is valid."""
        self._at, self._attention = 0, TextAttention()
        self._logprobs, self._best_ids, self._best_logprobs = [], [], []

    def scores(self) -> PromptScores:
        return PromptScores(
            logprobs=tuple(self._logprobs), best_ids=tuple(self._best_ids), best_logprobs=tuple(self._best_logprobs)
        )
