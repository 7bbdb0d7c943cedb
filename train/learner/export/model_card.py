"""README.md of an exported model: source, training, scores, and untested loaders. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rocstar.train.learner.export.source import ExportSource

FACTS = ("rocstar", "commit", "torch", "transformers", "python", "recipe", "world_size", "started", "ended")
"""Fields of the run's manifest in the card: versions and digests, nothing of the machine."""


def model_card(source: ExportSource, *, checked: str, tried: str, not_tried: str) -> str:
    """Return the page, with the front matter of model hubs.

    checked: checks of this export. tried, not_tried: loaders that were tested with such files, and those not.
    """
    parts = [
        _front(source),
        f"# {source.name}",
        _origin(source),
        _use(source),
        _scores(source),
        _manifest(source.manifest),
        f"## Checked\n\n- Checked: {checked}\n- Tried: {tried}\n- Not tried: {not_tried}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front(source: ExportSource) -> str:
    lines = ["library_name: transformers", "pipeline_tag: text-generation", "tags: [rocstar, tool-use]"]
    if (base := _base(source)) is not None:
        lines.append(f"base_model: {base}")
    return "\n".join(["---", *lines, "---"])


def _base(source: ExportSource) -> str | None:
    """Return the hub name of the base model; None for a local folder."""
    path = str(source.recipe.get("model", {}).get("path", "scratch"))
    return path if path.count("/") == 1 and not path.startswith((".", "/", "~")) else None


def _origin(source: ExportSource) -> str:
    kind = f"{source.config.get('architectures', ['?'])[0]} in bfloat16"
    if source.step is None:
        return f"{kind}, exported by rocstar."
    run = source.recipe.get("run", {}).get("name", "?")
    start = _base(source) or (
        "nothing" if source.recipe.get("model", {}).get("path") == "scratch" else "a local model"
    )
    return (
        f"{kind}, after {source.step} steps of reinforcement learning with a Python tool by rocstar: recipe "
        f"`{run}`, "
        f"from {start}."
    )


def _use(source: ExportSource) -> str:
    if source.template is None:
        return "It has no chat template."
    return (
        "The chat template is the one that it was trained with. It calls its tool in the text; who runs the "
        "calls "
        "answers them in a message of the role `tool`."
    )


def _scores(source: ExportSource) -> str:
    if not source.scores:
        return "## Scores\n\nNo evaluation of this checkpoint is stored."
    rows = [_score(name, told) for name, told in sorted(source.scores.items())]
    head = "| set | questions | score | 95% interval | also among the training tasks |\n|---|---|---|---|---|"
    return "## Scores\n\nBy the run itself, with the tool.\n\n" + "\n".join([head, *rows])


def _score(name: str, told: Mapping[str, Any]) -> str:
    low, high = told.get("interval") or (None, None)
    interval = "" if low is None or high is None else f"[{low:.3f}, {high:.3f}]"
    score = "" if told.get("avg") is None else f"{told['avg']:.3f} (avg@{told.get('k')})"
    found = told.get("contamination") or {}
    shared = "not known" if not found else str(len(found.get("questions", [])))
    return f"| {name} | {told.get('num_questions')} | {score} | {interval} | {shared} |"


def _manifest(manifest: Mapping[str, Any]) -> str:
    rows = [f"| {name} | {manifest[name]} |" for name in FACTS if manifest.get(name) is not None]
    return "\n".join(["## Made by\n\n| | |\n|---|---|", *rows]) if rows else ""
