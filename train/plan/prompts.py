"""Whether the recipe's chat template shows all that rows say; asked before anything is built."""

import datetime
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from rocstar.engine.chat.boundaries import ChatError, Rendering, load_template, shows_date
from rocstar.engine.chat.chat import token_names
from rocstar.engine.chat.shown import ShownCheck
from rocstar.engine.types import Task
from rocstar.train.learner.model_io import check_can_load, check_model_path, is_here, load_tokenizer
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import config_of_model, load_recipe
from rocstar.train.record.run_directory import CONFIG
from rocstar.train.tasks.chat_format import scratch_template, template_name, template_refused, with_date
from rocstar.train.tasks.tools import tool_box

ANSWER_FORMS = ("<answer>", "\\boxed")
"""The text from which the reward reads an answer."""


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

    def conversations(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Lines that count the conversations of sft.data. ConfigError for one with a message that would not
        be learned or read, and for more contradicting ones than sft.max_contradicting."""
        sft = self._recipe.sft
        field = "sft.template" if sft.template else "model.template"
        shown = self._shown_by(field)
        lacking, contradicting = dict.fromkeys(ANSWER_FORMS, 0), list[int]()
        for number, row in enumerate(rows, 1):
            try:
                shown.check_form(row["messages"], row.get("tools"))
                asked = shown.first_prompt(row["messages"], row.get("tools"))
            except ChatError as error:
                where = f"{sft.data}, conversation {number}"
                raise ConfigError(f"{where}: {self._refusal(error, field)}") from None
            said = [m.get("content") or "" for m in row["messages"] if m["role"] == "assistant"]
            demanded = [form for form in ANSWER_FORMS if said and form in asked]
            missing = [form for form in demanded if form not in "\n".join(said)]
            for form in missing:
                lacking[form] += 1
            contradicting += [number] if missing else []
        share = len(contradicting) / max(1, len(rows))
        line = (
            f"sft.data = {sft.data!r}: {len(contradicting)} of {len(rows)} conversations ({share:.1%}) lack "
            "the answer form that their prompt demands"
        )
        if share <= sft.max_contradicting:
            return [line]
        counts = ", ".join(f"{form} {count}" for form, count in lacking.items() if count)
        raise ConfigError(
            f"{line} (lacking: {counts}; the first is conversation {contradicting[0]}), more than "
            f"sft.max_contradicting = {sft.max_contradicting}: the cold start would unlearn what RL rewards; "
            "give the conversations an sft.template that demands no form, or answers in that form"
        )

    def _refusal(self, error: ChatError, field: str = "model.template") -> str:
        return (
            f"{field} = {template_name(self._recipe, field)!r} cannot carry the row: {error}; take another "
            "template (the bundled ones show system messages, earlier turns and tool calls), or leave the "
            "message out"
        )

    @cached_property
    def _shown(self) -> ShownCheck:
        return self._shown_by("model.template")

    def _shown_by(self, field: str) -> ShownCheck:
        """Return the check of the template that `field` names."""
        return ShownCheck(self._rendering(field), tool_box(self._recipe).schemas)

    def _rendering(self, field: str) -> Rendering:
        """Return the template that `field` names."""
        recipe, names, own = self._recipe, {}, None
        name = template_name(recipe, field)
        if self._model == "scratch":
            name = scratch_template(recipe) if name == "model" else name
        elif name == "model" or is_here(self._model):
            own = getattr(self._tokenizer, "chat_template", None)
            names = token_names(self._tokenizer)
        try:
            return Rendering(load_template(name, own), **names, date=recipe.model.date)
        except ChatError as error:
            raise template_refused(recipe, error, field=field) from None

    @cached_property
    def _tokenizer(self) -> Any:
        """The model's; loading it takes a second, and two templates may ask for it."""
        check_model_path(self._model)
        return load_tokenizer(self._model)


def dated(
    recipe: Recipe,
    model: str | None = None,
    *,
    former: Path | None = None,
    fetches: bool = True,
    today: Callable[[], datetime.date] = datetime.date.today,
) -> Recipe:
    """The recipe with `model.date` set where it is empty and a template shows the date.

    The date is that of the recipe in `former`, else that of the run whose checkpoint the model is, else
    today's. Rank 0 prints it. A template that cannot be loaded changes nothing: the preflight refuses it.

    Args:
        recipe: of a run, or of another verb that renders prompts.
        model: the one that reads the prompts, if it is not the recipe's.
        former: a folder whose work goes on, or whose records are learned.
        fetches: download the tokenizer if the hub's cache lacks it.
        today: the clock.
    """
    path = model or recipe.model.path
    if recipe.model.date or not _shows_date(recipe, path, fetches=fetches):
        return recipe
    date, why = today().isoformat(), "today's"
    for config in (former / CONFIG if former else None, config_of_model(path)):
        if config is not None and config.is_file() and (kept := load_recipe(config).model.date):
            date, why = kept, f"as in {str(config)!r}"
            break
    if os.environ.get("RANK", "0") == "0":
        print(
            f"model.date: the chat template shows the date; {date} is used ({why}), so that the same seed "
            "gives the same tokens every day",
            file=sys.stderr,
        )
    return with_date(recipe, date)


def _shows_date(recipe: Recipe, path: str, *, fetches: bool) -> bool:
    """Whether a template in use shows the date; false for one that cannot be loaded."""
    names, sft, own = [recipe.model.template], recipe.sft, None
    if sft.steps and sft.template:
        names.append(sft.template)
    try:
        if path == "scratch":
            names[0] = scratch_template(recipe)
        elif "model" in names and (fetches or is_here(path)):
            check_can_load(path)
            own = load_tokenizer(path).chat_template
        return any(shows_date(load_template(name, own)) for name in names)
    except (ChatError, ConfigError):
        return False
