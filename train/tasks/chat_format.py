"""How a conversation of the recipe is put in words: its chat template with its tokenizer and tools."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from transformers import PreTrainedTokenizerBase

from rocstar.engine.chat.boundaries import ChatError, Rendering, Tool, find_boundaries
from rocstar.engine.chat.chat import ChatFormat, Tokenizer, load_template, turn_form
from rocstar.engine.types import TurnForm
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.paths import missing_path_hint
from rocstar.train.tasks.environments.kinds import environments_of
from rocstar.train.tasks.tools import tool_box


def chat_format(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> ChatFormat:
    """Return the conversation format; ConfigError if template and tokenizer cannot carry tool calls."""
    own, tools = getattr(tokenizer, "chat_template", None), tool_box(recipe).schemas
    chat = _format(recipe, "model.template", cast("Tokenizer", tokenizer), own, tools)
    for name, environment in environments_of(recipe).items():
        if environment.functions and not chat.fits(environment.functions):
            raise ConfigError(
                f"environment {name!r}: with its tools model.template = {recipe.model.template!r} writes other text "
                "between turns than with those of the recipe; take another template"
            )
    tokenizer.chat_template = chat.template
    return chat


def _format(recipe: Recipe, field: str, tokenizer: Tokenizer, own: str | None, tools: Sequence[Tool]) -> ChatFormat:
    """Return the format of the template that `field` names; `own` is the template of the model itself."""
    try:
        return ChatFormat(
            tokenizer,
            load_template(template_name(recipe, field), own),
            tools,
            thinking=recipe.model.thinking,
            skips_thoughts=recipe.model.thoughts == "skip",
            date=recipe.model.date,
        )
    except ChatError as error:
        raise template_refused(recipe, error, field=field) from None


def conversation_format(recipe: Recipe, chat: ChatFormat) -> ChatFormat:
    """Return the format of the cold start's conversations; `chat` is that of the rollouts.

    ConfigError as for `chat_format`.
    """
    if not recipe.sft.template:
        return chat
    shown = _format(recipe, "sft.template", chat.tokenizer, None, chat.tools)
    if shown.stop_id != chat.stop_id:
        raise ConfigError(
            f"sft.template = {recipe.sft.template!r}: a turn ends with {shown.stop_text!r}, and with "
            f"{chat.stop_text!r} in model.template = {recipe.model.template!r}: the policy would not learn "
            "to end its turns; take a template with the same end"
        )
    if shown.form.calls != chat.form.calls:
        raise ConfigError(
            f"sft.template = {recipe.sft.template!r}: its calls have the form {shown.form.calls!r}, and "
            f"{chat.form.calls!r} in model.template = {recipe.model.template!r}: the policy would learn "
            "calls that RL reads as malformed; take a template with the same form"
        )
    return shown


def check_scratch(recipe: Recipe) -> TurnForm:
    """How turns are read under the template of a model from nothing: a bundled one or a file.

    ConfigError if it cannot carry tool calls.
    """
    try:
        text = Rendering(load_template(scratch_template(recipe), None), date=recipe.model.date)
        tools = tool_box(recipe).schemas
        return turn_form(text, tools, find_boundaries(text, tools, thinking=recipe.model.thinking))
    except ChatError as error:
        raise template_refused(recipe, error) from None


def with_date(recipe: Recipe, date: str) -> Recipe:
    """The recipe with the date that its templates show."""
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"date": date})})


def scratch_template(recipe: Recipe) -> str:
    """Name of the chat template: a model from nothing has none of its own."""
    return "compact" if recipe.model.template == "model" else recipe.model.template


def template_refused(recipe: Recipe, error: ChatError, *, field: str = "model.template") -> ConfigError:
    """Return the error of a refused template; for a missing file, with a hint."""
    name = template_name(recipe, field)
    hint = missing_path_hint(Path(name)) if not Path(name).exists() else ""
    return ConfigError(f"{field} = {name!r}: {error}{hint}")


def template_name(recipe: Recipe, field: str) -> str:
    """Return the value of sft.template or model.template."""
    return recipe.sft.template if field == "sft.template" else recipe.model.template
