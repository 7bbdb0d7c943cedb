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
    base = _base(source)
    front = ["library_name: transformers", "pipeline_tag: text-generation", "tags: [rocstar, tool-use]"]
    front += [] if base is None else [f"base_model: {base}"]
    facts = [f"| {key} | {source.manifest[key]} |" for key in FACTS if source.manifest.get(key) is not None]
    parts = [
        "\n".join(["---", *front, "---"]),
        f"# {source.name}",
        _origin(source),
        _use(source),
        _scores(source),
        "\n".join(["## Made by\n\n| | |\n|---|---|", *facts]) if facts else "",
        f"## Checked\n\n- Checked: {checked}\n- Tried: {tried}\n- Not tried: {not_tried}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


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
        f"`{run}`, from {start}."
    )


def _use(source: ExportSource) -> str:
    if source.template is None:
        return "It has no chat template."
    return (
        "The chat template is the one that it was trained with. It calls its tool in the text; who runs the "
        "calls answers them in a message of the role `tool`."
    )


def _scores(source: ExportSource) -> str:
    if not source.scores:
        return "## Scores\n\nNo evaluation of this checkpoint is stored."
    rows = [_score(name, result) for name, result in sorted(source.scores.items())]
    head = "| set | questions | score | 95% interval | also among the training tasks |\n|---|---|---|---|---|"
    return "## Scores\n\nBy the run itself, with the tool.\n\n" + "\n".join([head, *rows])


def _score(name: str, result: Mapping[str, Any]) -> str:
    low, high = result.get("interval") or (None, None)
    interval = "" if low is None or high is None else f"[{low:.3f}, {high:.3f}]"
    score = "" if result.get("avg") is None else f"{result['avg']:.3f} (avg@{result.get('k')})"
    found = result.get("contamination") or {}
    shared = "not known" if not found else str(len(found.get("questions", [])))
    return f"| {name} | {result.get('num_questions')} | {score} | {interval} | {shared} |"
