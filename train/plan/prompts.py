"""Whether the recipe's chat template shows all that rows say; asked before anything is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from rocstar.engine.chat.boundaries import ChatError, find_boundaries, load_template, rendering
from rocstar.engine.chat.callforms import schemas_of
from rocstar.engine.chat.chat import token_names, turn_form
from rocstar.engine.chat.readback import check_read_back, turn_text
from rocstar.engine.chat.shown import ShownCheck
from rocstar.engine.types import Task
from rocstar.train.learner.model_io import check_model_path, load_tokenizer
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.chat_format import scratch_template, template_refused
from rocstar.train.tasks.tools import tool_box


class PromptCheck:
    """Checks prompts of one recipe and model. The template is loaded when the first row asks for it."""

    def __init__(self, recipe: Recipe, model: str | None = None) -> None:
        self._recipe, self._model = recipe, model or recipe.model.path

    def task(self, task: Task) -> None:
        """ChatError for a task whose prompt would not show all its messages."""
        if not task.context:
            return  # that a question is shown is what `find_boundaries` found out
        shown = self._shown
        try:
            shown.check_prompt(task.messages)
        except ChatError as error:
            raise ChatError(self._refusal(error)) from None

    def conversations(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """ConfigError for a conversation of sft.data with a message that would not be learned or read."""
        shown = self._shown
        for number, row in enumerate(rows, 1):
            try:
                shown.check_conversation(row["messages"], row.get("tools"))
            except ChatError as error:
                where = f"{self._recipe.sft.data}, conversation {number}"
                raise ConfigError(f"{where}: {self._refusal(error)}") from None

    def calls(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """ConfigError for a conversation of sft.data whose calls the policy's parser would not read back."""
        recipe, (template, names), own = self._recipe, self._template, tool_box(self._recipe).schemas
        text = rendering(template, **names)
        found = find_boundaries(template, own, thinking=recipe.model.thinking, **names)
        form = turn_form(template, own, found, **names)
        form = replace(form, skips_thoughts=recipe.model.thoughts == "skip")
        for number, row in enumerate(rows, 1):
            tools = row.get("tools") or own
            for message in row["messages"]:
                if not message.get("tool_calls"):
                    continue
                try:
                    written = turn_text(text, message, tools, found)
                    check_read_back(written, message["tool_calls"], form, schemas_of(tools))
                except ChatError as error:
                    raise ConfigError(f"{recipe.sft.data}, conversation {number}: {error}") from None

    def _refusal(self, error: ChatError) -> str:
        return (
            f"model.template = {self._recipe.model.template!r} cannot carry the row: {error}; take another "
            "template (the bundled ones show system messages, earlier turns and tool calls), or leave the "
            "message out"
        )

    @cached_property
    def _shown(self) -> ShownCheck:
        template, names = self._template
        return ShownCheck(template, tool_box(self._recipe).schemas, **names)

    @cached_property
    def _template(self) -> tuple[str, dict[str, str]]:
        """The source, and what it writes by name."""
        recipe, names, own = self._recipe, {}, None
        name = recipe.model.template
        if self._model == "scratch":
            name = scratch_template(recipe)
        else:
            check_model_path(self._model)
            tokenizer = load_tokenizer(self._model)
            own = getattr(tokenizer, "chat_template", None)
            names = token_names(tokenizer)
        try:
            return load_template(name, own), {**names, "date": recipe.model.date}
        except ChatError as error:
            raise template_refused(recipe, error) from None
