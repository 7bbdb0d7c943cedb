"""Trajectories to packed tensors.

Rows that begin alike (siblings have one prompt, and often more) share that beginning: a hidden state depends
on the tokens before it alone, so it is computed once, and autograd adds up what all of them ask of it.

Legend: S sequences of a microbatch; I input tokens laid end to end, each sequence without what it shares with
the one before it and without what predicts nothing; T tokens with loss (targets), sequence by sequence. A
target at T is predicted by the input at `rows_T`, which may belong to a sequence before.
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
    """Input tokens of each sequence that it does not share."""
    shared_S: list[int]
    """Input tokens that it shares: so many first ones of the sequence before it."""
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

    def unusable(self, vocabulary: int) -> list[str]:
        """Names of what no loss can be made of: not finite, or ids outside the vocabulary."""
        ids = torch.cat([self.ids_I, self.targets_T])
        fine = {
            "ids": bool(((ids >= 0) & (ids < vocabulary)).all()),
            "weights": bool(self.weights_T.isfinite().all()),
            "advantages": bool(self.advantages_T.isfinite().all()),
            "rollout_logprobs": bool(self.rollout_logprobs_T.isfinite().all()),
        }
        return [name for name in CHECKED if not fine[name]]


CHECKED = ("ids", "weights", "advantages", "rollout_logprobs")


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


def last_token(ids: Sequence[int]) -> MicroBatch:
    """One row, of which only what comes behind it is asked: its one target stands for any."""
    example = Example(
        ids=[*ids, 0],
        mask=[0] * len(ids) + [1],
        weights=[0.0] * len(ids) + [1.0],
        rollout_logprobs=[None] * len(ids) + [0.0],
        advantage=0.0,
    )
    (micro,) = pack([example], tokens_per_microbatch=len(ids) + 1)
    return micro


MIN_SHARED = 1 / 8
"""Of a row's tokens: what is shared costs attention a mask, which a small saving does not pay."""
MAX_SCORES = 1 << 24
"""Of the mask of one row: 64 MB."""


def pack(examples: Sequence[Example], *, tokens_per_microbatch: int) -> list[MicroBatch]:
    """Microbatches of rows that begin alike, under a budget of input tokens; what rows share counts once.

    A row over the budget is alone in its microbatch. An example without loss has no part in the update and is
    left out, as is what comes behind the last loss token of any other.
    """
    batches: list[list[_Row]] = []
    room, before = 0, ()  # type: int, Sequence[int]
    # In the order of their ids, no row shares more with an earlier one than with the one before it.
    for example in sorted((e for e in examples if any(e.mask)), key=lambda e: (tuple(e.ids), e.name)):
        inputs = example.ids[: max(itertools.compress(range(len(example.mask)), example.mask))]
        shared = _common(before, inputs)
        if shared < MIN_SHARED * len(inputs) or (len(inputs) - shared) * len(inputs) > MAX_SCORES:
            shared = 0
        if not batches or len(inputs) - shared > room:
            batches.append([])
            room, shared = tokens_per_microbatch, 0
        batches[-1].append(_Row(example=example, inputs=inputs, shared=shared))
        room -= len(inputs) - shared
        before = inputs
    return [_collate(batch) for batch in batches]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first items are equal. By bisection: comparing slices is what Python does fast."""
    equal, differ = 0, min(len(a), len(b)) + 1
    while differ - equal > 1:
        middle = (equal + differ) // 2
        if a[equal:middle] == b[equal:middle]:
            equal = middle
        else:
            differ = middle
    return equal


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
        shared_S=[0],
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """An example in its microbatch; its first `shared` inputs are those of the row before it."""

    example: Example
    inputs: Sequence[int]
    shared: int

    @property
    def num_own(self) -> int:
        return len(self.inputs) - self.shared


def _collate(rows: Sequence[_Row]) -> MicroBatch:
    ids: list[int] = []
    positions: list[int] = []
    path: list[int] = []
    """Where each input of the present row lies."""
    loss_rows: list[int] = []
    targets: list[int] = []
    weights: list[float] = []
    advantages: list[float] = []
    logprobs: list[float] = []
    after_tool: list[bool] = []
    for row in rows:
        example = row.example
        path = [*path[: row.shared], *range(len(ids), len(ids) + row.num_own)]
        ids += row.inputs[row.shared :]
        positions += range(row.shared, len(row.inputs))
        turn_ended = False
        for k in range(1, len(row.inputs) + 1):
            if not example.mask[k]:
                # What the policy did not write comes behind its own tokens only as a tool's answer.
                turn_ended = turn_ended or bool(example.mask[k - 1])
                continue
            loss_rows.append(path[k - 1])
            targets.append(example.ids[k])
            weights.append(example.weights[k])
            advantages.append(example.advantage)
            logprobs.append(example.rollout_logprobs[k] or 0.0)
            after_tool.append(turn_ended)
    return MicroBatch(
        names_S=[row.example.name for row in rows],
        lengths_S=[row.num_own for row in rows],
        shared_S=[row.shared for row in rows],
        targets_S=[sum(map(bool, row.example.mask)) for row in rows],
        ids_I=torch.tensor(ids),
        positions_I=torch.tensor(positions),
        rows_T=torch.tensor(loss_rows, dtype=torch.long),
        targets_T=torch.tensor(targets, dtype=torch.long),
        weights_T=torch.tensor(weights, dtype=torch.float32),
        advantages_T=torch.tensor(advantages, dtype=torch.float32),
        rollout_logprobs_T=torch.tensor(logprobs, dtype=torch.float32),
        after_tool_T=torch.tensor(after_tool, dtype=torch.bool),
    )
