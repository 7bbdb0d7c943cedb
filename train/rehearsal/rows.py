"""Rows of a recipe's lengths, packed as the learner packs them: content is noise, for no value matters.

Lengths are those of the simulator's workload `paper`, which has the mean, the spread and the calls that the
report of a step gives, scaled to the stage's limit. About an eighth of the rows are as long as the limit
lets them be.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rocstar.engine.sim.workload import SHAPES, TrajectoryWork, generate
from rocstar.train.learner.balance import Cost, efficiency
from rocstar.train.learner.batch import MicroBatch, empty_microbatch, pack, share_out, split_updates
from rocstar.train.learner.example import Example
from rocstar.train.recipe.config import Recipe
from rocstar.train.serving.embedded import PROMPT_SHARE

LENGTHS = "paper"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLengths:
    """Lengths of one trajectory: its task's prompt, then what policy and tools wrote by turns."""

    task: int
    prompt: int
    turns: tuple[tuple[int, int], ...]
    """Tokens of the policy, and of the tool's answer behind them."""

    @property
    def tokens(self) -> int:
        return self.prompt + sum(new + answer for new, answer in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedStep:
    """One step's microbatches, of which one rank rehearses a few."""

    updates: list[list[MicroBatch]]
    """The heaviest microbatch of any rank and the next one, for each optimizer step."""
    rounds: int
    """Microbatches of each rank in the whole step."""
    rows: int
    tokens: int
    """Input tokens of the whole step, on all ranks."""
    longest: int
    """Tokens of the longest row."""
    efficiency: float
    """Total work over the duration of the rounds."""
    flops: float
    """The cost of a forward over the whole step."""

    @property
    def heaviest(self) -> int:
        """Input tokens of the heaviest microbatch."""
        return len(self.updates[0][0].ids_I)


def rl_rows(recipe: Recipe, *, siblings: int, limit: int) -> list[RowLengths]:
    """Return the trajectories of one step, `siblings` of each task."""
    return _rows(generate(LENGTHS, tasks=recipe.rl.tasks_per_step, siblings=siblings, seed=0).trajectories, limit)


def sft_rows(recipe: Recipe) -> list[RowLengths]:
    """Return the conversations of one batch: no two of one prompt, none beyond sft.max_tokens."""
    works = generate(LENGTHS, tasks=recipe.sft.batch_size, siblings=1, seed=0).trajectories
    rows = _rows(works, recipe.sft.max_tokens - 1)
    return [_cut(row, recipe.sft.max_tokens) for row in rows]


def _rows(works: Sequence[TrajectoryWork], limit: int) -> list[RowLengths]:
    scale = limit / SHAPES[LENGTHS].limit_tokens
    tasks: dict[str, int] = {}
    rows = []
    for work in works:
        prompt = max(2, min(work.prompt_tokens, int(PROMPT_SHARE * limit)))  # those of small recipes are short
        turns = [(max(1, int(t.new_tokens * scale)), int(t.tool_tokens * scale)) for t in work.turns]
        rows.append(RowLengths(task=tasks.setdefault(work.group, len(tasks)), prompt=prompt, turns=tuple(turns)))
    return rows


def _cut(row: RowLengths, limit: int) -> RowLengths:
    """Return the row truncated to `limit` tokens; its last turn is the policy's."""
    room, turns = limit - row.prompt, []
    for new, answer in row.turns:
        if room < 1:
            break
        turns.append((min(new, room), max(0, min(answer, room - new - 1))))
        room -= sum(turns[-1])
    return RowLengths(task=row.task, prompt=row.prompt, turns=tuple(turns))


def fake_examples(rows: Sequence[RowLengths], *, vocabulary: int, share_prompts: bool) -> list[Example]:
    """Rows of random ids; siblings have their prompt in common. Columns are views where they can be."""
    rng = np.random.default_rng(0)
    longest = max(row.tokens for row in rows)
    noise = rng.integers(0, vocabulary, 4 * longest + 1, dtype=np.int64)
    weight = np.broadcast_to(np.float64(1.0 / sum(new for row in rows for new, _ in row.turns)), (longest,))
    made = []
    for number, row in enumerate(rows):
        start = int(rng.integers(0, len(noise) - row.tokens))
        ids = noise[start : start + row.tokens]
        if share_prompts:
            at = (7 * row.task) % (len(noise) - row.prompt)
            ids = np.concatenate([noise[at : at + row.prompt], ids[row.prompt :]])
        mask = np.zeros(row.tokens, bool)
        at = row.prompt
        for new, answer in row.turns:
            mask[at : at + new] = True
            at += new + answer
        made.append(Example(ids=ids, mask=mask, weights=weight[: row.tokens], advantage=1.0, name=f"row {number}"))
    return made


def batch_of(rows: Sequence[Example], *, room: int, ranks: int, cost: Cost, updates: int, seed: int) -> PackedStep:
    """Return the step of these rows. The heaviest microbatch of each update, on any rank, comes first."""
    parts = split_updates(len(rows), updates, random.Random(seed))
    packed = [pack([rows[k] for k in part], tokens_per_microbatch=room, ranks=ranks, cost=cost) for part in parts]
    costs = [[_cost(micro, cost) for micro in micros] for micros in packed]
    return PackedStep(
        updates=[_heaviest_first(micros, ranks) for micros in packed],
        rounds=sum(-(-len(micros) // ranks) for micros in packed),
        rows=len(rows),
        tokens=sum(len(micro.ids_I) for micros in packed for micro in micros),
        longest=max(len(row.ids) for row in rows),
        efficiency=min(efficiency(one, ranks) for one in costs),
        flops=sum(sum(one) for one in costs),
    )


def _heaviest_first(micros: Sequence[MicroBatch], ranks: int) -> list[MicroBatch]:
    """The microbatch with most tokens, and another of the same rank if it has one."""
    shares = share_out(micros, ranks)
    sizes = [max((len(micro.ids_I), micro.num_loss_tokens) for micro in share) for share in shares]
    share = shares[max(range(len(shares)), key=lambda rank: (sizes[rank], -rank))]
    by_size = sorted(share, key=lambda micro: (-len(micro.ids_I), -micro.num_loss_tokens))
    return by_size[:2] or [empty_microbatch()]


def _cost(micro: MicroBatch, cost: Cost) -> float:
    parts = zip(micro.lengths_S, micro.shared_S, micro.targets_S, strict=True)
    return sum(cost.of(own, shared, targets) for own, shared, targets in parts)
