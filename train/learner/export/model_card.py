"""README.md of an exported model: use, scores, training, data, command, licence, and untested loaders."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2

from rocstar.train.learner.export.source import ExportSource
from rocstar.train.recipe.errors import ConfigError

FACTS = ("rocstar", "commit", "torch", "transformers", "python", "recipe", "world_size", "started", "ended")
"""Fields of the run's manifest in the card: versions and digests, nothing of the machine."""
RL = "advantage tasks_per_step rollouts_per_task group_size roc_mode temperature lr num_updates_per_batch"
TOOL = "flavour wall_s memory_mb max_output_tokens max_parallel_calls"
SETTINGS = {"rl": f"{RL} clip_low clip_high".split(), "tool": TOOL.split(), "run": ["seed"]}


def model_card(source: ExportSource, **loaders: str) -> str:
    """Return the page, with the front matter of model hubs. No path and no machine name is in it.

    loaders: `checked`, the checks of this export; `tried`, loaders that read such files; `not_tried`.

    Raises:
        ConfigError: recipe, manifest or results of the run do not have their form.
    """
    try:
        return _render(source, loaders)
    except (AttributeError, KeyError, TypeError, ValueError, jinja2.TemplateError) as error:
        raise ConfigError(
            "config.toml, manifest.json or results.json of the run is damaged "
            f"({type(error).__name__}: {error}); restore it, or export a copy of the checkpoint elsewhere"
        ) from None


def _render(source: ExportSource, loaders: Mapping[str, str]) -> str:
    path = str(source.recipe.get("model", {}).get("path", "scratch"))
    is_on_hub = path.count("/") == 1 and not path.startswith((".", "/", "~"))
    words = (str(word).rpartition("=") for word in source.manifest.get("command", []))
    environment = jinja2.Environment(
        undefined=jinja2.ChainableUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    template = Path(__file__).with_name("model_card.md.jinja").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        source=source,
        recipe=source.recipe,
        base=path if is_on_hub else None,
        settings=SETTINGS,
        data=list(_data(source.recipe)),
        facts=FACTS,
        command=shlex.join(name + sign + value.rpartition("/")[2] for name, sign, value in words),
        **loaders,
    )


def _data(recipe: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Yield use, source, rows, and digest or seed of each source of tasks; of a file its name alone."""
    sft = recipe.get("sft", {})
    uses = [("cold start", {"source": sft.get("data", "demonstrations")})] if sft.get("steps") else []
    if sft.get("data") == "demonstrations":
        uses = [("cold start", sft.get("demonstration_tasks"))]
    uses += [(stage.get("name"), stage.get("data")) for stage in recipe.get("stages", [])]
    uses += [(chosen.get("name") or "evaluation", chosen.get("data")) for chosen in recipe.get("eval", [])]
    for use, config in uses:
        if not config:
            continue
        source, size = str(config["source"]), config.get("limit") or config.get("size") or "all"
        digest, path = "not known", Path(source)
        if config.get("families"):
            source, digest = f"{source}: {', '.join(config['families'])}", f"seed {config.get('seed', 0)}"
            size = size if config.get("limit") else f"{size} of each"
        elif path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        yield [use, source if ":" in source else path.name, size, digest]
