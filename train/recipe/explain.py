"""One line for an error of a recipe: field, value, reason, and the probable intention."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_origin

from pydantic import BaseModel

from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.fields import nested, surface

NEAR = 0.6
"""The likeness by difflib below which two names are no slip of the fingers, and a guess would mislead."""
ELSEWHERE: Final[Mapping[str, tuple[str, ...]]] = {
    "learning_rate": ("lr",),
    "epochs": ("steps",),
    "num_epochs": ("steps",),
    "num_steps": ("steps",),
    "max_steps": ("steps",),
    "group": ("group_size",),
    "num_generations": ("rollouts_per_task",),
    "num_rollouts": ("rollouts_per_task",),
    "n": ("rollouts_per_task",),
    "batch_size": ("tasks_per_step",),
    "train_batch_size": ("tasks_per_step", "batch_size"),
    "max_tokens": ("max_response_tokens",),
    "max_new_tokens": ("max_response_tokens",),
    "max_completion_length": ("max_response_tokens",),
    "max_grad_norm": ("grad_clip",),
    "gradient_checkpointing": ("activation_checkpointing",),
    "precision": ("dtype",),
    "torch_dtype": ("dtype",),
    "model_name": ("path",),
    "name_or_path": ("path",),
    "chat_template": ("template",),
    "timeout": ("wall_s",),
    "timeout_s": ("wall_s",),
    "save_steps": ("every",),
    "eval_steps": ("every",),
    "report_to": ("trackers",),
    "clip_range": ("clip_low", "clip_high"),
    "num_gpus": ("replicas",),
    "dataset": ("data", "source"),
    "path": ("source",),
}
"""Names of our fields in other programs."""


def explain(error: Any, model: type[BaseModel] = Recipe) -> str:
    """One pydantic error as: field, value, reason, and for an unknown key the nearest one."""
    location = ".".join(str(part) for part in error["loc"]) or "recipe"
    if error["type"] == "extra_forbidden":
        known = _fields_at(error["loc"][:-1], model)
        return f"unknown key {location!r}; {_hint(error['loc'], known, model)}"
    if error["type"] == "missing":
        return f"{location} is missing"
    reason = error["msg"].removeprefix("Value error, ")
    value = error.get("input")
    shown = "" if isinstance(value, dict | list) or error["type"] == "value_error" else f" = {value!r}"
    return f"{location}{shown}: {reason}"


def _hint(location: Sequence[Any], known: Sequence[str], model: type[BaseModel]) -> str:
    """A field that is near, or called so elsewhere, or of another section; else all of this section."""
    lowered = str(location[-1]).lower()
    near = difflib.get_close_matches(lowered, known, n=1, cutoff=NEAR)
    meant = [field for field in ELSEWHERE.get(lowered, ()) if field in known]
    if meant or near:
        return f"did you mean {' or '.join(repr(field) for field in meant or near)}?"
    section = ".".join(str(part) for part in location[:-1] if not isinstance(part, int))
    names = (lowered, *ELSEWHERE.get(lowered, ()))
    listed = surface() if model is Recipe else []
    fields = [field.removesuffix(" = DATA") for field in listed if not field.startswith("DATA.")]
    others = [repr(field) for field in fields if field.partition(".")[2] in names]
    if section and others:
        return f"it belongs to another section: {' or '.join(others)}"
    where = f"the fields of {section}" if section else "the sections"
    return f"{where} are {', '.join(known)}" if known else "remove it"


def _fields_at(location: Sequence[Any], model: type[BaseModel]) -> list[str]:
    """Names of the fields of the section of `model` at `location`."""
    parts = iter([part for part in location if not isinstance(part, int)])
    for part in parts:
        annotation = model.model_fields[part].annotation
        section = nested(annotation)
        if section is None:
            return []
        if get_origin(annotation) is dict and next(parts, None) is None:
            return []  # the tables' names are the user's
        model = section
    return list(model.model_fields)
