"""Trajectories to packed tensors.

Legend: S sequences of a microbatch; I input tokens laid end to end (each sequence without its last token);
T tokens with loss (targets), in flat order. A target at T is predicted by the input at `rows_T`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rocstar.engine.types import Trajectory
from rocstar.train.algorithm.aggregate import Aggregation, token_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One token row ready to learn from. All lists have one entry per token.

    Invariant: mask[0] == 0 (the first token is predicted by nothing) and mask is 1 only on tokens the
    policy (or a demonstrator) wrote.
    """

    ids: Sequence[int]
    mask: Sequence[int]
    weights: Sequence[float]
    """Share of each token in the loss of its optimizer step; 0 where the mask is 0."""
    rollout_logprobs: Sequence[float | None]
    advantage: float
    name: str = ""
    """Of its trajectory, for messages."""

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.mask) == len(self.weights) == len(self.rollout_logprobs):
            raise ValueError("ids, mask, weights and rollout_logprobs must have one entry per token")
        if len(self.ids) < 2 or self.mask[0]:
            raise ValueError("an example needs two tokens or more, the first without loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward and backward. Plain tensors on the CPU, so that a rank can send it to another."""

    names_S: list[str]
    lengths_S: list[int]
    targets_S: list[int]
    """Loss tokens of each sequence."""
    ids_I: Tensor
    positions_I: Tensor
    rows_T: Tensor
    targets_T: Tensor
    weights_T: Tensor
    advantages_T: Tensor
    rollout_logprobs_T: Tensor
    after_tool_T: Tensor
    """True where the trajectory has tool output before the token."""

    @property
    def num_loss_tokens(self) -> int:
        return len(self.targets_T)


def policy_examples(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[float],
    aggregation: Aggregation = Aggregation.token_mean,
) -> list[Example]:
    """The trajectories of one optimizer step, weighted by the step's global token counts."""
    weights = token_weights([t.num_policy_tokens for t in trajectories], aggregation)
    examples = []
    for trajectory, advantage, weight in zip(trajectories, advantages, weights, strict=True):
        mask = trajectory.loss_mask()
        examples.append(
            Example(
                ids=trajectory.ids,
                mask=mask,
                weights=[weight * m for m in mask],
                rollout_logprobs=trajectory.logprobs,
                advantage=advantage,
                name=str(trajectory.key),
            )
        )
    return examples


def split_updates(num_examples: int, num_updates: int, rng: random.Random) -> list[list[int]]:
    """Shuffle and cut into at most `num_updates` nearly equal parts, none of them empty."""
    order = list(range(num_examples))
    rng.shuffle(order)
    parts = min(num_updates, num_examples)
    bounds = [num_examples * k // parts for k in range(parts + 1)] if parts else [0]
    return [order[a:b] for a, b in itertools.pairwise(bounds)]


def pack(examples: Sequence[Example], *, tokens_per_microbatch: int) -> list[MicroBatch]:
    """Microbatches of similar lengths under a token budget; a row over the budget is alone in its own."""
    by_length = sorted(examples, key=lambda e: len(e.ids))
    batches: list[list[Example]] = []
    room = 0
    for example in by_length:
        length = len(example.ids) - 1
        if length > room:
            batches.append([])
            room = tokens_per_microbatch
        batches[-1].append(example)
        room -= length
    return [_collate(batch) for batch in batches]


def share_out(microbatches: Sequence[MicroBatch], world_size: int) -> list[list[MicroBatch]]:
    """Microbatches per rank, the same number on every rank: empty ones still run forward and backward."""
    rounds = -(-len(microbatches) // world_size)
    padded = [*microbatches, *(empty_microbatch() for _ in range(rounds * world_size - len(microbatches)))]
    return [padded[rank::world_size] for rank in range(world_size)]


def empty_microbatch() -> MicroBatch:
    """One input token and no loss: keeps the collectives of all ranks in step."""
    zero = torch.zeros(0)
    return MicroBatch(
        names_S=[""],
        lengths_S=[1],
        targets_S=[0],
        ids_I=torch.zeros(1, dtype=torch.long),
        positions_I=torch.zeros(1, dtype=torch.long),
        rows_T=zero.long(),
        targets_T=zero.long(),
        weights_T=zero,
        advantages_T=zero,
        rollout_logprobs_T=zero,
        after_tool_T=zero.bool(),
    )


def _collate(examples: Sequence[Example]) -> MicroBatch:
    ids: list[int] = []
    positions: list[int] = []
    rows: list[int] = []
    targets: list[int] = []
    weights: list[float] = []
    advantages: list[float] = []
    logprobs: list[float] = []
    after_tool: list[bool] = []
    for example in examples:
        start = len(ids)
        ids += example.ids[:-1]
        positions += range(len(example.ids) - 1)
        turn_ended = False
        for k in range(1, len(example.ids)):
            if not example.mask[k]:
                # What the policy did not write comes behind its own tokens only as a tool's answer.
                turn_ended = turn_ended or bool(example.mask[k - 1])
                continue
            rows.append(start + k - 1)
            targets.append(example.ids[k])
            weights.append(example.weights[k])
            advantages.append(example.advantage)
            logprobs.append(example.rollout_logprobs[k] or 0.0)
            after_tool.append(turn_ended)
    return MicroBatch(
        names_S=[e.name for e in examples],
        lengths_S=[len(e.ids) - 1 for e in examples],
        targets_S=[sum(map(bool, e.mask)) for e in examples],
        ids_I=torch.tensor(ids),
        positions_I=torch.tensor(positions),
        rows_T=torch.tensor(rows, dtype=torch.long),
        targets_T=torch.tensor(targets, dtype=torch.long),
        weights_T=torch.tensor(weights, dtype=torch.float32),
        advantages_T=torch.tensor(advantages, dtype=torch.float32),
        rollout_logprobs_T=torch.tensor(logprobs, dtype=torch.float32),
        after_tool_T=torch.tensor(after_tool, dtype=torch.bool),
    )
