"""Entropies and log-probs of stored trajectories under given weights: the learner's forward and head alone.

    trajectories -> pack -> decoder -> head, in rows of chunks -> entropy, log-prob of each policy token

Equal to the learner's values in an update: both are `linear_loss` at the same hidden states, fp32 sums over
softmax(logits / temperature).

Legend: N policy tokens of a trajectory, T those of a microbatch.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rocstar.engine.types import Trajectory
from rocstar.kernels.cpu_products import fast_products
from rocstar.kernels.linear_loss import linear_loss
from rocstar.train.learner.batch import MicroBatch, pack, sequence_examples
from rocstar.train.learner.policy_model import PolicyModel

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """Entropy of each policy token, in order."""

    entropy_N: Floats
    """Nats, of softmax(logits / temperature)."""
    logprob_N: Floats
    """Log-prob of the written token."""

    @property
    def is_finite(self) -> bool:
        """Whether every entropy is a number."""
        return bool(np.isfinite(self.entropy_N).all())


@torch.no_grad()
@fast_products()
def token_scores(
    policy: PolicyModel, trajectories: Sequence[Trajectory], *, temperature: float, tokens_per_microbatch: int
) -> list[TokenScores]:
    """Return the scores of each trajectory, in order. A row over the budget is alone in its microbatch.

    Raises ValueError for a token id outside the model's vocabulary, or a temperature that is not positive.
    """
    sequences = (row for t in trajectories for row in sequence_examples(t, 0.0, 1.0, ""))
    rows = [replace(row, name=str(k)) for k, row in enumerate(sequences)]
    entropies: list[Floats] = [np.zeros(row.num_targets) for row in rows]
    logprobs = [np.zeros(row.num_targets) for row in rows]
    for micro in pack(rows, tokens_per_microbatch=tokens_per_microbatch):
        entropy_T, logprob_T = _scored(policy, micro, temperature)
        start = 0
        for name, count in zip(micro.names_S, micro.targets_S, strict=True):
            entropies[int(name)] = entropy_T[start : start + count]
            logprobs[int(name)] = logprob_T[start : start + count]
            start += count
    return [
        TokenScores(entropy_N=np.concatenate(entropies[a:b]), logprob_N=np.concatenate(logprobs[a:b]))
        for a, b in itertools.pairwise(itertools.accumulate((len(t.starts) for t in trajectories), initial=0))
    ]


def _scored(policy: PolicyModel, micro: MicroBatch, temperature: float) -> tuple[Any, Any]:
    vocabulary = policy.model.get_output_embeddings().weight.shape[0]  # type: ignore[no-untyped-call]
    if "ids" in micro.unusable(int(vocabulary)):
        raise ValueError(f"a token id lies outside the vocabulary of {vocabulary}")
    ids_T = micro.targets_T.to(policy.device)

    def head(hidden_TD: Tensor, weight_VD: Tensor) -> tuple[Tensor, Tensor]:
        _, rows = linear_loss(
            hidden_TD,
            weight_VD,
            ids_T,
            lambda logprobs_C, _: logprobs_C,
            temperature=temperature,
            head_dtype=policy.head_dtype,
        )
        return rows.entropy_N, rows.logprobs_N

    entropy_T, logprob_T = policy(micro, head)
    return entropy_T.double().cpu().numpy(), logprob_T.double().cpu().numpy()
