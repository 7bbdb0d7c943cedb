"""Everything that can be wrong with a recipe is found here, before any work and before a file is written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from transformers import PreTrainedTokenizerBase

from rocstar.engine.boundaries import ChatError, find_boundaries
from rocstar.engine.chat import ChatFormat, Tokenizer, load_template
from rocstar.engine.tools import TOOLS
from rocstar.engine.types import Task
from rocstar.sandbox.flavours import FLAVOURS
from rocstar.train.agent import redis_url
from rocstar.train.cold_start import scratch_template
from rocstar.train.config import ConfigError, DataConfig, Recipe, StageConfig
from rocstar.train.data import interleave_by_source, load_tasks, without_overlap
from rocstar.train.model_io import check_model_path, check_vocabulary, load_max_positions, load_tokenizer
from rocstar.train.placement import check_gpus
from rocstar.train.prompts import PromptCheck, template_refused
from rocstar.train.scratch import MAX_POSITIONS
from rocstar.train.servers import check_sglang
from rocstar.train.sft import read_conversations


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """All tasks of a recipe, loaded and checked before anything else is built."""

    stages: list[list[Task]]
    heldout: list[Task]
    demonstrations: list[Task]


def load_all_tasks(recipe: Recipe, model: str | None = None) -> Tasks:
    """Load every data source; no RL task is a held-out one. ConfigError for the first that cannot be used.

    `model`: the one that will see them, if it is not the recipe's.
    """
    shown = PromptCheck(recipe, model)
    heldout = _load(recipe.eval.data, shown) if recipe.eval.data else []
    stages: list[list[Task]] = []
    for stage in recipe.stages:
        stages.append(_not_held_out(stage, heldout, shown) if stage.data else stages[-1])
    source = recipe.sft.demonstration_tasks
    needed = recipe.sft.steps and recipe.sft.data == "demonstrations" and source is not None
    demonstrations = _load(source, shown) if needed and source is not None else []
    return Tasks(stages=stages, heldout=heldout, demonstrations=demonstrations)


def _not_held_out(stage: StageConfig, heldout: Sequence[Task], shown: PromptCheck) -> list[Task]:
    assert stage.data is not None
    tasks = _load(stage.data, shown)
    apart = without_overlap(tasks, heldout)
    if not apart:
        raise ConfigError(
            f"stage {stage.name!r}: all {len(tasks)} tasks of its data are also in eval.data; "
            "give one of them another source, split or seed"
        )
    return apart


def _load(config: DataConfig, shown: PromptCheck) -> list[Task]:
    tasks = interleave_by_source(load_tasks(config, base=Path.cwd(), check=shown.task))
    return tasks[: config.limit] if config.limit else tasks


def check(recipe: Recipe) -> None:
    """What can be wrong before any work. Raises ConfigError; nothing was written."""
    model, sft = recipe.model, recipe.sft
    if model.path != "scratch":
        check_model_path(model.path)
        tokenizer = load_tokenizer(model.path)
        chat_format(recipe, tokenizer)
        check_vocabulary(model.path, tokenizer)
        max_positions = load_max_positions(model.path)
    else:
        if not sft.steps:
            raise ConfigError(
                "model.path = 'scratch' needs sft.steps > 0: its tokenizer comes from the cold start"
            )
        check_scratch(recipe)
        max_positions = MAX_POSITIONS
    if sft.steps and sft.data != "demonstrations":
        PromptCheck(recipe).conversations(read_conversations(Path(sft.data)))
    check_engine(recipe)
    if recipe.tool.flavour not in (*FLAVOURS, "auto"):
        raise ConfigError(f"tool.flavour = {recipe.tool.flavour!r} is not one of {', '.join(FLAVOURS)}, auto")
    for k, stage in enumerate(recipe.stages):
        if max_positions is not None and stage.max_response_tokens >= max_positions:
            raise ConfigError(
                f"stages.{k}.max_response_tokens = {stage.max_response_tokens} leaves no room for a prompt "
                f"in the model's {max_positions} positions; lower it"
            )


def check_engine(recipe: Recipe) -> None:
    """What the engine and the tools need of this node. ConfigError; nothing was started."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    check_gpus(recipe.engine, torch.cuda.device_count(), ranks)
    if recipe.engine.kind == "sglang":
        check_sglang()
    if recipe.tool.sandbox == "redis":
        redis_url()


def check_scratch(recipe: Recipe) -> None:
    """The template of a model from nothing must be a bundled one or a file, and carry tool calls."""
    try:
        find_boundaries(
            load_template(scratch_template(recipe), None),
            [TOOLS[recipe.tool.kind].schema],
            thinking=recipe.model.thinking,
        )
    except ChatError as error:
        raise template_refused(recipe, error) from None


def chat_format(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> ChatFormat:
    """The conversation format; ConfigError if template and tokenizer cannot carry tool calls."""
    try:
        source = load_template(recipe.model.template, getattr(tokenizer, "chat_template", None))
        chat = ChatFormat(
            cast("Tokenizer", tokenizer),
            source,
            [TOOLS[recipe.tool.kind].schema],
            thinking=recipe.model.thinking,
        )
    except ChatError as error:
        raise template_refused(recipe, error) from None
    tokenizer.chat_template = source
    return chat
