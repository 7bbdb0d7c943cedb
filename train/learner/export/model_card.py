"""README.md of an exported model: use, scores, training, data, command, licence, and untested loaders."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocstar.train.learner.export.source import ExportSource

FACTS = ("rocstar", "commit", "torch", "transformers", "python", "recipe", "world_size", "started", "ended")
"""Fields of the run's manifest in the card: versions and digests, nothing of the machine."""
RL = (
    *("advantage", "tasks_per_step", "rollouts_per_task", "group_size", "roc_mode", "temperature", "lr"),
    *("num_updates_per_batch", "clip_low", "clip_high"),
)
TOOL = ("flavour", "wall_s", "memory_mb", "max_output_tokens", "max_parallel_calls")


def model_card(source: ExportSource, *, checked: str, tried: str, not_tried: str) -> str:
    """Return the page, with the front matter of model hubs. No path and no machine name is in it.

    checked: checks of this export. tried, not_tried: loaders that were tested with such files, and those not.
    """
    base, recipe = _base(source), source.recipe
    front = ["library_name: transformers", "pipeline_tag: text-generation", "tags: [rocstar, tool-use]"]
    front += [] if base is None else [f"base_model: {base}"]
    parts = [
        "\n".join(["---", *front, "---"]),
        f"# {source.name}",
        _origin(source, base),
        "It has no chat template."
        if source.template is None
        else "The chat template is the one that it was trained with. It calls its tool in the text; who runs "
        "the calls answers them in a message of the role `tool`.",
        _scores(source),
        _training(recipe) if recipe else "",
        _table("Made by", "| | |", ([key, source.manifest.get(key)] for key in FACTS)),
        _again(source),
        f"## Checked\n\n- Checked: {checked}\n- Tried: {tried}\n- Not tried: {not_tried}",
        f"## Licence\n\nThat of the base model, {base}: see its page."
        if base
        else "## Licence\n\nThe weights are trained from random ones: no base model has a licence to keep."
        if recipe.get("model", {}).get("path") == "scratch"
        else "## Licence\n\nThat of the base model, which is a local folder: see its files.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _base(source: ExportSource) -> str | None:
    """Return the hub name of the base model; None for a local folder."""
    path = str(source.recipe.get("model", {}).get("path", "scratch"))
    return path if path.count("/") == 1 and not path.startswith((".", "/", "~")) else None


def _origin(source: ExportSource, base: str | None) -> str:
    kind = f"{source.config.get('architectures', ['?'])[0]} in bfloat16"
    if source.step is None:
        return f"{kind}, exported by rocstar."
    is_new = source.recipe.get("model", {}).get("path") == "scratch"
    return (
        f"{kind}, after {source.step} steps of reinforcement learning with a Python tool by rocstar: recipe "
        f"`{source.recipe.get('run', {}).get('name', '?')}`, from "
        f"{base or ('random weights' if is_new else 'a local model')}."
    )


def _table(title: str, head: str, rows: Iterable[Sequence[Any]]) -> str:
    """Return a section with a table, without the rows whose last cell is None; "" if no row is left."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows if row[-1] is not None]
    rule = "|" + "---|" * (head.count("|") - 1)
    return "\n".join([f"## {title}\n", head, rule, *lines]) if lines else ""


def _scores(source: ExportSource) -> str:
    if not source.scores:
        return "## Evaluation\n\nNot evaluated: the run stored no evaluation of this checkpoint."
    asked = source.evaluation.get("settings", {}).get("sampling", {})
    data, rows = source.evaluation.get("data", {}), []
    for name, result in sorted(source.scores.items()):
        low, high = result.get("interval") or (None, None)
        before = source.scores_before.get(name, {}).get("avg")
        found = result.get("contamination") or {}
        rows.append([
            name,
            result.get("num_questions"),
            "" if result.get("avg") is None else f"{result['avg']:.3f} (avg@{result.get('k')})",
            "" if low is None or high is None else f"[{low:.3f}, {high:.3f}]",
            "" if before is None else f"{before:.3f}",
            asked.get(name, {}).get("temperature", ""),
            str(data.get(name, {}).get("digest") or "")[:12],
            "not known" if not found else len(found.get("questions", [])),
        ])  # fmt: skip
    head = "| set | questions | score | 95% interval | before RL | temperature | SHA-256 of the set "
    text = _table("Evaluation", f"{head}| also among the training tasks |", rows)
    note = "By the run itself, with the tool. avg@k: the mean share of right attempts of k."
    return f"{text}\n\n{note}"


def _training(recipe: Mapping[str, Any]) -> str:
    """Return the sections of stages, objective, tools and data, from the resolved recipe."""
    sft, rl, tool = (recipe.get(name, {}) for name in ("sft", "rl", "tool"))
    stages = (
        [["cold start (SFT)", f"{sft['steps']} updates", sft.get("max_tokens"), ""]]
        if sft.get("steps")
        else []
    )
    uses = [("cold start", sft.get("demonstration_tasks"))] if sft.get("data") == "demonstrations" else []
    uses += [("cold start", {"source": sft["data"]})] if stages and not uses and sft.get("data") else []
    for stage in recipe.get("stages", []):
        name = stage.get("name", "")
        stages.append(
            [name, f"{stage.get('steps')} steps", stage.get("max_response_tokens"), stage.get("max_turns")]
        )
        uses += [(name, stage.get("data"))]
    uses += [(one.get("name") or "evaluation", one.get("data")) for one in recipe.get("eval", [])]
    settings = [[f"rl.{key}", rl.get(key)] for key in RL]
    settings += [["tools", ", ".join(one["kind"] for one in recipe.get("tools", [])) or None]]
    settings += [[f"tool.{key}", tool.get(key)] for key in TOOL]
    settings += [["run.seed", recipe.get("run", {}).get("seed")]]
    data = ([use, *_data(config)] for use, config in uses if config)
    return "\n\n".join([
        _table("Training", "| stage | length | response tokens | turns |", stages),
        _table("Settings", "| field | value |", settings),
        _table("Data", "| use | source | rows | SHA-256, or seed |", data),
    ])  # fmt: skip


def _data(config: Mapping[str, Any]) -> list[Any]:
    """Return source, rows and digest of a [tasks.NAME] table; a file by its name alone."""
    source, size = str(config["source"]), config.get("limit") or config.get("size") or "all"
    if source == "reasoning_gym":
        families = ", ".join(config.get("families", {}))
        rows = size if config.get("limit") else f"{size} of each"
        return [f"reasoning-gym: {families}", rows, f"seed {config.get('seed', 0)}"]
    if source.startswith("hub:"):
        return [source, size, "not known"]
    path = Path(source)
    if not path.is_file():
        return [path.name, size, "not known: the file is gone"]
    with path.open("rb") as file:
        return [path.name, size, hashlib.file_digest(file, "sha256").hexdigest()]


def _again(source: ExportSource) -> str:
    """Return the command of the run, its paths by their last part."""
    words = [str(word) for word in source.manifest.get("command", [])]
    if not words:
        return ""
    parts = (word.rpartition("=") for word in words)
    short = [name + sign + value.rpartition("/")[2] for name, sign, value in parts]
    return f"## Reproduce\n\n```bash\n{shlex.join(short)}\n```\n\nPaths are shortened to their last part."
