"""What the cold start learns from, and the model it begins with when there is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rocstar.engine.chat import load_template, render
from rocstar.engine.tools import TOOLS, result_text
from rocstar.engine.types import Task
from rocstar.sandbox.types import Limits, Sandbox
from rocstar.train.config import Recipe
from rocstar.train.console import Console
from rocstar.train.data import overlap, without_overlap
from rocstar.train.demonstrations import make_demonstrations
from rocstar.train.scratch import build_model, train_tokenizer
from rocstar.train.sft import read_conversations

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
    tokenizer = train_tokenizer(texts, vocab_size=scratch.vocab_size, template=template)
    return build_model(scratch, len(tokenizer), seed=recipe.run.seed), tokenizer
