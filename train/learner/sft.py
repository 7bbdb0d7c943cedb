"""The data of the cold start: non-reasoning supervised fine-tuning on chat conversations with tools.

Loss: mean cross-entropy over assistant tokens, plus `digit_weight` times the mean over digit tokens (a tiny
model must copy numbers exactly; without it copying is learnt last). Both means become per-token weights.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rocstar.engine.chat.boundaries import ChatError
from rocstar.engine.chat.chat import ChatFormat
from rocstar.train.learner.example import Example
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.paths import missing_path_hint
from rocstar.train.tasks.messages import read_messages, short_repr
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
            f"sft.data = {str(path)!r} does not exist{missing_path_hint(path)}; give 'demonstrations' or a "
            "chat JSONL file"
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
        raise ConfigError(f"{where}: tools is {short_repr(tools)}; it must be a list of tool schemas")
    return {"messages": read_messages(messages, where), "tools": tools}


def tokenise(rows: Sequence[dict[str, Any]], chat: ChatFormat, *, max_tokens: int) -> tuple[list[Conversation], int]:
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
