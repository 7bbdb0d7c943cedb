"""The cold start: non-reasoning supervised fine-tuning on chat conversations with tools.

Loss: mean cross-entropy over assistant tokens, plus `digit_weight` times the mean over digit tokens (a tiny
model must copy numbers exactly; without it copying is learnt last). Both means become per-token weights.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rocstar.engine.chat.boundaries import ChatError
from rocstar.engine.chat.chat import ChatFormat
from rocstar.train.learner.batch import pack
from rocstar.train.learner.example import Example
from rocstar.train.learner.optim import OptimSpec
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.paths import elsewhere
from rocstar.train.recipe.sft_config import SftConfig
from rocstar.train.tasks.messages import read_messages, shown
from rocstar.train.tasks.rows import jsonl_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Ids and loss mask of one tokenised conversation."""

    ids: list[int]
    mask: list[int]


def read_conversations(path: Path, tools: Literal["recipe", "row"] = "recipe") -> list[dict[str, Any]]:
    """Rows {"messages": [...], "tools": ...} of a chat JSONL file; blank lines are skipped.

    `tools` of a row without any: None, which is the recipe's, or with "row" an empty list.
    """
    if not path.is_file():
        raise ConfigError(
            f"sft.data = {str(path)!r} does not exist{elsewhere(path)}; give 'demonstrations' or a chat "
            "JSONL file"
        )
    rows = [_read_conversation(row, where) for where, row in jsonl_rows(path)]
    if tools == "row":
        rows = [{**row, "tools": row["tools"] or []} for row in rows]
    if not rows:
        raise ConfigError(f"sft.data = {str(path)!r} holds no conversation; write one JSON object per line")
    return rows


def _read_conversation(row: Any, where: str) -> dict[str, Any]:
    messages = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(messages, list) or not messages:
        raise ConfigError(f'{where} has no \'messages\'; write {{"messages": [{{"role": ..., ...}}]}}')
    tools = row.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(t, dict) for t in tools)):
        raise ConfigError(f"{where}: tools is {shown(tools)}; it must be a list of tool schemas")
    return {"messages": read_messages(messages, where), "tools": tools}


def tokenise(
    rows: Sequence[dict[str, Any]], chat: ChatFormat, *, max_tokens: int
) -> tuple[list[Conversation], int]:
    """Conversations that fit, and how many were skipped (too long, or nothing to learn)."""
    kept, skipped = [], 0
    for number, row in enumerate(rows, 1):
        try:
            ids, mask = chat.encode_conversation(row["messages"], row.get("tools"))
        except ChatError as error:
            raise ConfigError(f"sft.data, conversation {number}: {error}") from None
        if len(ids) > max_tokens or not any(mask):
            skipped += 1
        else:
            kept.append(Conversation(ids=ids, mask=mask))
    if not kept:
        raise ConfigError(
            f"sft: none of {len(rows)} conversations has an assistant's text and fits "
            f"sft.max_tokens = {max_tokens}; raise it"
        )
    return kept, skipped


def examples(batch: Sequence[Conversation], digit_ids: frozenset[int], digit_weight: float) -> list[Example]:
    """One optimizer step's rows with weights from the step's global counts."""
    masks = [np.asarray(c.mask, dtype=bool) for c in batch]
    is_digit = [mask & np.isin(c.ids, list(digit_ids)) for c, mask in zip(batch, masks, strict=True)]
    digits = sum(int(places.sum()) for places in is_digit)
    plain = 1.0 / sum(int(mask.sum()) for mask in masks)
    more = digit_weight / digits if digits else 0.0
    return [
        Example(ids=c.ids, mask=mask, weights=plain * mask + more * places, advantage=1.0)
        for c, mask, places in zip(batch, masks, is_digit, strict=True)
    ]


def batches(
    conversations: Sequence[Conversation], *, batch_size: int, steps: int, rng: random.Random
) -> list[list[Conversation]]:
    """`steps` batches, epoch after epoch; an epoch shows every conversation once, in a random order.

    Lengths are left as they fall: rows are packed, so sorting would save nothing, and a batch of one length
    is a batch of one kind of conversation, whose gradient is not that of the data.
    """
    out: list[list[Conversation]] = []
    while len(out) < steps:
        order = rng.sample(conversations, len(conversations))
        out += [order[at : at + batch_size] for at in range(0, len(order), batch_size)]
    return out[:steps]


async def cold_start(
    team: LearnerTeam,
    conversations: Sequence[Conversation],
    config: SftConfig,
    *,
    digit_ids: frozenset[int],
    tokens_per_microbatch: int,
    seed: int,
    on_step: Callable[[int, float, float], None],
    done: int = 0,
    saved: Path | None = None,
    save: Callable[[int], Awaitable[None]] | None = None,
    save_every: int = 0,
) -> None:
    """Train for `config.steps` optimizer steps; `on_step(step, mean_loss, grad_norm)` after each.

    `done` of them were made when the checkpoint `saved` was written, from which the weights are. `save(step)`
    comes after every `save_every` steps but the last.
    """
    await team.use(
        OptimSpec(
            kind=config.optimizer,
            lr=config.lr,
            betas=(config.betas[0], config.betas[1]),
            weight_decay=0.0,
            grad_clip=1.0,
            warmup_steps=config.warmup_steps,
            total_steps=config.steps,
            decay_fraction=config.decay_fraction,
        )
    )
    if saved is not None:
        await team.load_optimizer(saved)
    rng = random.Random(f"sft|{seed}")
    plan = batches(conversations, batch_size=config.batch_size, steps=config.steps, rng=rng)
    for step, batch in enumerate(plan[done:], done + 1):
        rows = examples(batch, digit_ids, config.digit_weight)
        micros = pack(
            rows, tokens_per_microbatch=tokens_per_microbatch, ranks=team.world.size, cost=team.row_cost
        )
        stats = await team.imitation_step(micros)
        on_step(step, stats.loss / stats.tokens, stats.grad_norms[-1])
        if save is not None and save_every and step % save_every == 0 and step < config.steps:
            await save(step)
