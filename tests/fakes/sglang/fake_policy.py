"""The stand-in server's scheduler with a real policy: its tokens and log-probs are those of its weights.

Slow (a whole forward per token) and for tiny models only. What a run does with a server, and whether its
log-probs are the learner's, can be tested without SGLang.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from tests.fakes.sglang.fake import FakeRequest, FakeScheduler


class PolicyScheduler(FakeScheduler):
    """Noise is of (request id, position), so that siblings differ."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(**options)
        build: Any = AutoModelForCausalLM  # transformers has no types for it
        self._model: Any = build.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32).eval()

    def take_weights(self, tensors: Mapping[str, Tensor]) -> None:
        self._model.load_state_dict(dict(tensors), strict=False)  # a tied head has no tensor of its own

    @torch.inference_mode()
    def next_token(self, request: FakeRequest) -> tuple[int, float]:
        sequence = request.sequence
        logits_V = self._model(torch.tensor([sequence]), logits_to_keep=1).logits[0, -1].float()
        if request.temperature == 0:
            logprobs_V = torch.log_softmax(logits_V, -1)
            token = int(logprobs_V.argmax())
        else:
            scale = 1.0 if self.raw_logprobs else request.temperature
            logprobs_V = torch.log_softmax(logits_V / scale, -1)
            token = int((logprobs_V + _gumbel(request.rid, len(sequence), len(logits_V))).argmax())
        return token, float(logprobs_V[token])


def _gumbel(rid: str, position: int, size: int) -> Tensor:
    seed = int.from_bytes(hashlib.blake2b(f"{rid}|{position}".encode(), digest_size=7).digest(), "little")
    uniform_V = torch.rand(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return -torch.log(-torch.log(uniform_V.clamp(min=1e-300))).float()
