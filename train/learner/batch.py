"""Trajectories to packed tensors.

Rows with a common prefix (siblings share their prompt, and often more) share its computation: a hidden state
depends only on the tokens before it, so it is computed once, and autograd sums the gradients of all rows.

Legend: S sequences of a microbatch; I input tokens concatenated, each sequence without the prefix it shares
with the one before it and without tokens that predict no target; T tokens with loss (targets), sequence by
sequence. A target at T is predicted by the input at `rows_T`, which may belong to an earlier sequence.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rocstar.engine.record.learned import sequence_name
from rocstar.engine.types import Origin, Trajectory
from rocstar.train.algorithm.advantages import Advantage
from rocstar.train.algorithm.aggregate import token_weights
from rocstar.train.algorithm.loss import PolicyTokens
from rocstar.train.learner.balance import Cost, balance
from rocstar.train.learner.example import Example, Ids, Mask


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
    echo_rows_E: Tensor | None = None
    """Where the tokens of tool results that are learned by imitation are predicted; None: there are none."""
    echo_targets_E: Tensor | None = None
    echo_weights_E: Tensor | None = None
    old_logprobs_T: Tensor | None = None
    """Log-probs under the weights at the batch start; None: these are the present weights, the ratio is 1."""

    def __reduce__(self) -> tuple[Any, ...]:
        """As numpy columns, which team.py sends unpickled; integers in 4 bytes if they fit."""
        return _from_columns, tuple(_column(getattr(self, field.name)) for field in fields(self))

    @property
    def num_loss_tokens(self) -> int:
        return len(self.targets_T)

    def tokens_at(self, device: torch.device) -> Callable[[Tensor, slice], PolicyTokens]:
        """Return a function that makes some tokens, on the device, from their current log-probs."""
        old_T = None if self.old_logprobs_T is None else self.old_logprobs_T.to(device)
        rollout_T, advantages_T = self.rollout_logprobs_T.to(device), self.advantages_T.to(device)
        after_tool_T = self.after_tool_T.to(device)

        def tokens(logprobs_C: Tensor, rows: slice) -> PolicyTokens:
            return PolicyTokens(
                logprobs_T=logprobs_C,
                old_logprobs_T=logprobs_C.detach() if old_T is None else old_T[rows],
                rollout_logprobs_T=rollout_T[rows],
                advantages_T=advantages_T[rows],
                after_tool_T=after_tool_T[rows],
                lengths_S=self.targets_S if len(logprobs_C) == self.num_loss_tokens else None,
            )

        return tokens

    def with_echo(self) -> MicroBatch:
        """Return a microbatch whose rows to the head are those of the loss, then those of imitation."""
        if self.echo_rows_E is None or self.echo_targets_E is None:
            return self
        rows, targets = (self.rows_T, self.echo_rows_E), (self.targets_T, self.echo_targets_E)
        return replace(self, rows_T=torch.cat(rows), targets_T=torch.cat(targets))

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


BodyMask = Callable[[Sequence[int]], Sequence[bool]]
"""Ids of a tool segment -> True for the tokens of results, without the template's text around them."""
CHECKED = ("ids", "weights", "advantages", "rollout_logprobs")
INT32 = np.iinfo(np.int32)


def _column(value: Any) -> Any:
    """A tensor's numbers as they travel; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    numbers = value.detach().cpu().contiguous().numpy()
    if numbers.dtype != np.int64 or (len(numbers) and not INT32.min <= numbers.min() <= numbers.max() <= INT32.max):
        return numbers
    return numbers.astype(np.int32)


def _from_columns(*columns: Any) -> MicroBatch:
    """The microbatch of what `_column` gave of its fields."""
    found: list[Any] = [
        torch.from_numpy(column.astype(np.int64) if column.dtype == np.int32 else column)
        if isinstance(column, np.ndarray)
        else column
        for column in columns
    ]
    by_name: dict[str, Any] = dict(zip((field.name for field in fields(MicroBatch)), found, strict=True))
    return MicroBatch(**by_name)


def policy_examples(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[Advantage],
    *,
    echo: float = 0.0,
    bodies: BodyMask | None = None,
) -> list[Example]:
    """The sequences of the trajectories of one optimizer step, weighted by the step's global token counts.

    All sequences of a trajectory have its advantage and its weight per token; of a branch, tokens before its fork are
    context, for its parent has them. With `echo` the tokens that `bodies`
    finds in tool segments are learned by imitation, each with weight echo / their number in the step: a denominator
    apart from that of the policy's tokens, which long outputs would otherwise thin.
    """
    weights = token_weights([t.num_policy_tokens for t in trajectories])
    examples = [
        example
        for trajectory, advantage, weight in zip(trajectories, advantages, weights, strict=True)
        for example in sequence_examples(trajectory, advantage, weight, str(trajectory.key), bodies if echo else None)
    ]
    if not echo:
        return examples
    shares = token_weights([example.num_echo for example in examples])
    return [replace(example, echo_weight=echo * share) for example, share in zip(examples, shares, strict=True)]


def sequence_examples(
    trajectory: Trajectory, advantage: Advantage, weight: float, name: str, bodies: BodyMask | None = None
) -> Iterator[Example]:
    """Yield an example for each sequence; an advantage for each loss token is cut at the sequences."""
    mask = trajectory.loss_mask()
    echo = None if bodies is None else _tool_bodies(trajectory, bodies)
    if not isinstance(advantage, int | float) and len(advantage) != mask.sum():
        raise ValueError(f"{len(advantage)} advantages for {mask.sum()} loss tokens")
    end = 0
    for k, tokens in enumerate(trajectory.sequences):
        begin, end = end, end + int(mask[tokens].sum())
        yield Example(
            ids=trajectory.ids[tokens],
            mask=mask[tokens],
            weights=weight * mask[tokens],
            rollout_logprobs=trajectory.logprobs[tokens],
            echo=None if echo is None else echo[tokens],
            advantage=advantage if isinstance(advantage, int | float) else advantage[begin:end],
            name=sequence_name(name, k),
            is_branch=trajectory.fork is not None,
        )


def _tool_bodies(trajectory: Trajectory, bodies: BodyMask) -> Mask:
    """Return True for the tokens of tool results; one entry per token."""
    mask = np.zeros(len(trajectory.ids), bool)
    for segment in trajectory.segments:
        if segment.origin is Origin.tool:
            mask[segment.start : segment.end] = bodies(trajectory.ids[segment.start : segment.end].tolist())
    return mask


def split_updates(num_examples: int, num_updates: int, rng: random.Random) -> list[list[int]]:
    """Shuffle and cut into at most `num_updates` nearly equal parts, none of them empty."""
    order = list(range(num_examples))
    rng.shuffle(order)
    parts = min(num_updates, num_examples)
    bounds = [num_examples * k // parts for k in range(parts + 1)] if parts else [0]
    return [order[a:b] for a, b in itertools.pairwise(bounds)]


def last_token(ids: Sequence[int]) -> MicroBatch:
    """Pack one row for the prediction of its next token: its one target is arbitrary."""
    mask = [0] * len(ids) + [1]
    example = Example(ids=[*ids, 0], mask=mask, weights=mask, advantage=0.0)
    (micro,) = pack([example], tokens_per_microbatch=len(ids) + 1)
    return micro


MIN_SHARED = 1 / 8
"""The share of a row's tokens from which prompts are shared: a mask costs more than a small saving pays."""
MAX_SCORES = 1 << 24
"""Entries of the mask of one row at most: 64 MB."""


TOKENS = Cost()


def pack(
    examples: Sequence[Example], *, tokens_per_microbatch: int, ranks: int = 1, cost: Cost = TOKENS
) -> list[MicroBatch]:
    """Return microbatches for `share_out`, costliest first; rows with a common prefix are together and count
    it once.

    A row over the budget is alone in its microbatch. Examples without loss are left out, as are tokens after
    the last loss token of an example.

    Args:
        examples: rows of one optimizer step.
        tokens_per_microbatch: maximum of input tokens; shared tokens count once.
        ranks: number of ranks; each gets a microbatch if there are enough rows.
        cost: the model's cost of a row.
    """
    found = [(example, example.ids[: example.last_loss]) for example in examples if example.last_loss]
    # In the order of ids no row shares more with an earlier one than with the one before.
    found.sort(key=lambda one: (one[0].ids.astype(">u4").tobytes(), one[0].name))
    rows = _linked(_Row(example=example, inputs=inputs, shared=0) for example, inputs in found)
    pieces = list(_pieces(rows, tokens_per_microbatch, ranks))
    sizes = [sum(row.num_own for row in piece) for piece in pieces]
    costs = [sum(cost.of(row.num_own, row.shared, row.num_targets) for row in piece) for piece in pieces]
    bins = balance(sizes, costs, room=tokens_per_microbatch, ranks=ranks)
    return [_collate(_linked(row for k in chosen for row in pieces[k])) for chosen in bins]


def _linked(rows: Iterable[_Row]) -> list[_Row]:
    """Return the rows, each with the length of the prefix it shares with the one before it."""
    linked: list[_Row] = []
    before = np.empty(0, np.int64)
    for row in rows:
        inputs = row.inputs
        shared = _common(before, inputs)
        if shared < MIN_SHARED * len(inputs) or (len(inputs) - shared) * len(inputs) > MAX_SCORES:
            shared = 0
        linked.append(_Row(example=row.example, inputs=inputs, shared=shared))
        before = inputs
    return linked


def _pieces(rows: Sequence[_Row], room: int, ranks: int) -> Iterator[list[_Row]]:
    """Rows that belong together because they share, cut where a microbatch would be too large."""
    total = sum(row.num_own for row in rows)
    rounds = max(1, -(-total // (room * ranks)))
    limit = min(room, -(-total // (rounds * ranks)))
    piece: list[_Row] = []
    size = 0
    for row in rows:
        if piece and (not row.shared or size + row.num_own > limit):
            yield piece
            piece, size = [], 0
        if not piece:
            row = _Row(example=row.example, inputs=row.inputs, shared=0)
        piece.append(row)
        size += row.num_own
    if piece:
        yield piece


def _common(a: Ids, b: Ids) -> int:
    """How many first items are equal."""
    least = min(len(a), len(b))
    differ = np.flatnonzero(a[:least] != b[:least])
    return int(differ[0]) if len(differ) else least


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
    inputs: Ids
    shared: int

    @property
    def num_own(self) -> int:
        return len(self.inputs) - self.shared

    @property
    def num_targets(self) -> int:
        return self.example.num_targets + self.example.num_echo


def _collate(rows: Sequence[_Row]) -> MicroBatch:
    path = np.empty(0, np.int64)
    """The position of each input of the present row."""
    paths, start = [], 0
    for row in rows:
        path = np.concatenate([path[: row.shared], np.arange(start, start + row.num_own)])
        paths.append(path)
        start += row.num_own
    positions = [np.arange(row.shared, len(row.inputs)) for row in rows]
    targets = [np.flatnonzero(row.example.mask) for row in rows]
    examples = [row.example for row in rows]

    def of_targets(columns: Iterable[np.ndarray[Any, Any]], dtype: Any) -> Tensor:
        parts = [column[places] for column, places in zip(columns, targets, strict=True)]
        return torch.from_numpy(np.concatenate(parts).astype(dtype))

    return MicroBatch(
        names_S=[example.name for example in examples],
        lengths_S=[row.num_own for row in rows],
        shared_S=[row.shared for row in rows],
        targets_S=[len(places) for places in targets],
        ids_I=torch.from_numpy(np.concatenate([row.inputs[row.shared :] for row in rows])),
        positions_I=torch.from_numpy(np.concatenate(positions)),
        rows_T=torch.from_numpy(
            np.concatenate([path[places - 1] for path, places in zip(paths, targets, strict=True)])
        ),
        targets_T=of_targets((e.ids for e in examples), np.int64),
        weights_T=of_targets((e.weights for e in examples), np.float32),
        advantages_T=torch.from_numpy(np.concatenate([e.advantages for e in examples]).astype(np.float32)),
        rollout_logprobs_T=of_targets((e.rollout_logprobs for e in examples), np.float32),
        after_tool_T=of_targets((after_tool(e.mask) | e.is_branch for e in examples), bool),
        **_echo_columns(examples, paths),
    )


def _echo_columns(examples: Sequence[Example], paths: Sequence[np.ndarray[Any, Any]]) -> dict[str, Tensor]:
    """The columns of imitation; none without a token of it. `paths`: the inputs of each example."""
    if not any(example.num_echo for example in examples):
        return {}
    parts = [(e, path, np.flatnonzero(e.echo)) for e, path in zip(examples, paths, strict=True) if e.num_echo]
    weights = [np.full(len(places), e.echo_weight) for e, _, places in parts]
    return {
        "echo_rows_E": torch.from_numpy(np.concatenate([path[places - 1] for _, path, places in parts])),
        "echo_targets_E": torch.from_numpy(np.concatenate([e.ids[places] for e, _, places in parts])),
        "echo_weights_E": torch.from_numpy(np.concatenate(weights).astype(np.float32)),
    }


def after_tool(mask: Mask) -> Mask:
    """Return for each token whether tool output comes directly before it.

    After the policy's first token, all tokens of others are answers of tools.
    """
    ended = np.zeros(len(mask), bool)
    ended[1:] = mask[:-1] & ~mask[1:]
    return np.logical_or.accumulate(ended)
