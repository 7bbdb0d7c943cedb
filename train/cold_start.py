"""The cold start: what it learns from, the model it begins with when there is none, and the learning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rocstar.engine.boundaries import render
from rocstar.engine.chat import ChatFormat, load_template
from rocstar.engine.progress import working
from rocstar.engine.tools import TOOLS, result_text
from rocstar.engine.types import Task
from rocstar.sandbox.types import Limits, Sandbox
from rocstar.train.bad_batch import stops_run
from rocstar.train.config import Recipe, TrainingStopped
from rocstar.train.console import Console
from rocstar.train.data import overlap, without_overlap
from rocstar.train.demonstrations import make_demonstrations
from rocstar.train.metrics import MetricsWriter
from rocstar.train.scratch import build_model, digit_token_mask, train_tokenizer
from rocstar.train.sft import cold_start, read_conversations, tokenise
from rocstar.train.team import LearnerTeam

TOKENIZER_ROWS = 4000
"""Conversations the tokenizer learns from; more change little."""


async def conversations_for(
    recipe: Recipe, tasks: Sequence[Task], known: Sequence[Task], sandbox: Sandbox, console: Console
) -> list[dict[str, Any]]:
    """Chat rows of the recipe: read from its file, or demonstrated on tasks that are in no other set."""
    if recipe.sft.data != "demonstrations":
        return read_conversations(Path(recipe.sft.data))
    shared = overlap(tasks, known)
    apart = without_overlap(tasks, known)
    note = f"{len(tasks)} tasks to demonstrate, {shared:.1%} also in other sets and left out"
    console.note(f"cold start: {note}")
    tool = recipe.tool
    rows = await make_demonstrations(
        apart,
        recipe.sft.num_demonstrations,
        seed=recipe.run.seed,
        sandbox=sandbox,
        tool_name=TOOLS[tool.kind].name,
        render_result=lambda result: result_text(result, tool.text),
        limits=Limits(wall_s=tool.wall_s, memory_bytes=tool.memory_mb << 20),
        flavour=tool.flavour,
    )
    console.note(f"cold start: {len(rows)} conversations, tool results from real executions")
    return rows


def scratch_template(recipe: Recipe) -> str:
    """Name of the chat template: a model from nothing has none of its own."""
    return "compact" if recipe.model.template == "model" else recipe.model.template


def build_from_nothing(
    recipe: Recipe, rows: Sequence[dict[str, Any]]
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A tokenizer trained on the conversations and a Qwen3 with random weights."""
    template = load_template(scratch_template(recipe), None)
    tools = [TOOLS[recipe.tool.kind].schema]
    texts = (
        render(template, row["messages"], tools, generation_prompt=False) for row in rows[:TOKENIZER_ROWS]
    )
    scratch = recipe.model.scratch
    with working("training a tokenizer"):
        tokenizer = train_tokenizer(texts, vocab_size=scratch.vocab_size, template=template)
    return build_model(scratch, len(tokenizer), seed=recipe.run.seed), tokenizer


async def run_cold_start(
    team: LearnerTeam,
    recipe: Recipe,
    chat: ChatFormat,
    rows: Sequence[dict[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    console: Console,
    metrics: MetricsWriter,
) -> None:
    """Learn the conversations; about fifty rows of metrics tell how it went."""
    sft = recipe.sft
    with working(f"cold start: tokens of {len(rows):,} conversations"):
        conversations, skipped = tokenise(rows, chat, max_tokens=sft.max_tokens)
    if skipped:
        console.note(f"cold start: {skipped} of {len(rows)} conversations skipped (too long or empty)")
    total = sft.steps

    def on_step(step: int, loss: float, grad_norm: float) -> None:
        work.done = step
        console.sft_progress(step, total, loss)
        if step % max(1, total // 50) == 0 or step == total:
            values = {"loss/sft": loss, "optim/grad_norm": grad_norm}
            metrics.write(values, step=step, stage="sft", phase="sft")

    is_digit_V = digit_token_mask(cast("PreTrainedTokenizerFast", tokenizer))
    try:
        with (
            stops_run(metrics.path.parent, "cold_start"),
            working("cold start", unit="updates", total=total) as work,
        ):
            await cold_start(
                team,
                conversations,
                sft,
                digit_ids=frozenset(token for token, is_digit in enumerate(is_digit_V) if is_digit),
                tokens_per_microbatch=recipe.rl.tokens_per_microbatch,
                seed=recipe.run.seed,
                on_step=on_step,
            )
    except TrainingStopped:
        await team.stop()
        raise
