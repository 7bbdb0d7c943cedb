"""Pack the kept trajectories of a step into microbatches for the learner."""

from __future__ import annotations

import random

from rocstar.train.groups.selection import Selection
from rocstar.train.learner.balance import Cost
from rocstar.train.learner.batch import TOKENS, BodyMask, MicroBatch, pack, policy_examples, split_updates
from rocstar.train.recipe.config import Recipe


def pack_updates(
    selection: Selection,
    recipe: Recipe,
    *,
    step: int,
    ranks: int = 1,
    cost: Cost = TOKENS,
    bodies: BodyMask | None = None,
) -> list[list[MicroBatch]]:
    """The kept trajectories as microbatches per optimizer step; empty when no group had a signal.

    A part without a loss token is no update: a zero gradient would still move the weights by the optimizer's
    momentum. `bodies`: needed with `rl.echo`; `Run.bodies`.
    """
    if recipe.rl.echo and bodies is None:
        raise ValueError(f"rl.echo = {recipe.rl.echo} needs the places of tool results: give bodies=run.bodies")
    rng = random.Random(f"{recipe.run.seed}|updates|{step}")
    parts = split_updates(len(selection.kept), recipe.rl.num_updates_per_batch, rng)
    return [
        pack(
            policy_examples(
                [selection.kept[k] for k in part],
                [selection.advantages[k] for k in part],
                echo=recipe.rl.echo,
                bodies=bodies,
            ),
            tokens_per_microbatch=recipe.rl.tokens_per_microbatch,
            ranks=ranks,
            cost=cost,
        )
        for part in parts
        if any(selection.kept[k].num_policy_tokens for k in part)
    ]
