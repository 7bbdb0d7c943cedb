"""The cold start: its conversations as examples, its start model, and the training."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from transformers import PreTrainedTokenizerBase

from rocstar.engine.chat.boundaries import ChatError, Rendering
from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.progress.progress import working
from rocstar.train.learner.bad_batch import stops_run
from rocstar.train.learner.batch import pack
from rocstar.train.learner.checkpoint import load_progress, source_kind
from rocstar.train.learner.checkpoint_writer import Order
from rocstar.train.learner.example import Example
from rocstar.train.learner.model_io import load_tokenizer
from rocstar.train.learner.scratch import digit_token_ids, train_tokenizer
from rocstar.train.learner.settings import cold_start_optimizer
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.recipe.paths import missing_path_hint
from rocstar.train.record.callbacks import Listeners
from rocstar.train.record.metrics import MetricsWriter
from rocstar.train.record.run_directory import cold_start_of
from rocstar.train.tasks.chat_format import chat_format, conversation_format, scratch_template
from rocstar.train.tasks.messages import read_messages, short_repr
from rocstar.train.tasks.rows import jsonl_rows
from rocstar.train.tasks.tools import tool_box


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


TOKENIZER_ROWS = 4000
"""Conversations the tokenizer learns from; more change little."""


def build_tokenizer(recipe: Recipe, rows: Sequence[dict[str, Any]]) -> PreTrainedTokenizerBase:
    """Return a tokenizer trained on the conversations."""
    template = load_template(scratch_template(recipe), None)
    tools = tool_box(recipe).schemas
    render = Rendering(template, date=recipe.model.date)
    texts = (render(row["messages"], tools) for row in rows[:TOKENIZER_ROWS])
    with working("training a tokenizer"):
        return train_tokenizer(texts, vocab_size=recipe.model.scratch.vocab_size, template=template)


def encode_rows(recipe: Recipe, rows: Sequence[dict[str, Any]]) -> None:
    """Encode the conversations as the cold start does. ConfigError if one cannot be encoded, or none fits."""
    path = recipe.model.path
    tokenizer = build_tokenizer(recipe, rows) if path == "scratch" else load_tokenizer(path)
    shown = conversation_format(recipe, chat_format(recipe, tokenizer))
    tokenise(rows, shown, max_tokens=recipe.sft.max_tokens)


async def run_cold_start(
    team: LearnerTeam,
    recipe: Recipe,
    chat: ChatFormat,
    rows: Sequence[dict[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    listeners: Listeners,
    metrics: MetricsWriter,
    saved: Path | None = None,
) -> None:
    """Train on the conversations and write about fifty rows of metrics. `chat` is the rollouts'.

    `saved` is a checkpoint of this cold start whose weights the team has. ConfigError: it is of other data.
    """
    sft = recipe.sft
    with working(f"cold start: tokens of {len(rows):,} conversations"):
        shown = conversation_format(recipe, chat)
        conversations, skipped = tokenise(rows, shown, max_tokens=sft.max_tokens)
    if skipped:
        listeners.note(f"cold start: {skipped} of {len(rows)} conversations skipped (too long or empty)")
    total, run_dir = sft.steps, metrics.path.parent
    digest = digest_of(conversations)
    done = _steps_done(saved, digest) if saved else 0
    rng = random.Random(f"sft|{recipe.run.seed}")
    plan = batches(conversations, batch_size=sft.batch_size, steps=total, rng=rng)
    digit_ids = digit_token_ids(tokenizer)
    team.writer.use_tokenizer(tokenizer)
    try:
        with stops_run(run_dir, "cold_start"), working("cold start", unit="updates", total=total) as work:
            await team.use(cold_start_optimizer(sft))
            if saved is not None:
                await team.load_optimizer(saved)
            for step, batch in enumerate(plan[done:], done + 1):
                micros = pack(
                    examples(batch, digit_ids, sft.digit_weight),
                    tokens_per_microbatch=recipe.rl.tokens_per_microbatch,
                    ranks=team.world.size,
                    cost=team.row_cost,
                )
                stats = await team.imitation_step(micros)
                work.done = step
                values = {"loss/sft": stats.loss / stats.tokens, "optim/grad_norm": stats.grad_norms[-1]}
                listeners.cold_start(step, total, values)
                if step % max(1, total // 50) == 0 or step == total:
                    metrics.write(values, step=step, stage="sft", phase="sft")
                every = recipe.checkpoint.sft_every
                if every and step % every == 0 and step < total:
                    await team.save(_checkpoint(run_dir, step, digest, metrics.num_bytes))
            await team.finish_saving()
    except TrainingStopped:
        await team.stop()
        raise


def _checkpoint(run_dir: Path, step: int, digest: str, metrics_bytes: int) -> Order:
    """Return the order of a checkpoint inside the cold start; `digest` is of its conversations."""
    progress = {
        "step": 0,  # of the stages
        "sft_step": step,
        "conversations": digest,
        "source": source_kind(live=True),
        "metrics_bytes": metrics_bytes,
    }
    return Order(run_dir=cold_start_of(run_dir), step=step, progress=progress, keep_last=1, keep_every=0)


def digest_of(conversations: Sequence[Conversation]) -> str:
    """Return a digest of the data and its order, to compare two cold starts."""
    digest = hashlib.sha256()
    for one in conversations:
        digest.update(np.asarray([len(one.ids), *one.ids], np.int64).tobytes())
        digest.update(np.asarray(one.mask, np.int8).tobytes())
    return digest.hexdigest()


def _steps_done(saved: Path, digest: str) -> int:
    progress = load_progress(saved)
    if progress["conversations"] != digest:
        raise ConfigError(
            f"{str(saved)!r} was learning other conversations than sft.data gives now; give it those, or "
            f"remove {str(saved.parents[1])!r} to begin the cold start again"
        )
    done: int = progress["sft_step"]
    return done
