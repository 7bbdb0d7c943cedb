"""`rocstar export CHECKPOINT|RUN --out DIR`: the target is checked first, and it appears whole or never.

A Hugging Face folder has bfloat16 safetensors, tokenizer, chat template, generation config and card. Weights
go through memory one tensor at a time.
"""

import hashlib
import json
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import jinja2

from rocstar.train.learner.claims import CheckedFolder
from rocstar.train.learner.claims import check_folder as check_model
from rocstar.train.learner.export.gguf_file import check_gguf, write_gguf
from rocstar.train.learner.export.source import ExportSource, find_source
from rocstar.train.learner.model_io import check_finite, is_finite, load_tokenizer
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.run_directory import check_folder, write_json

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


_CONFIGS: Final = ("config.json", "generation_config.json", "tokenizer_config.json")
REWRITTEN: Final = (*_CONFIGS, "chat_template.jinja", "README.md")


def export(path: Path, out: Path, *, form: str = "hf") -> Path:
    """Write the export and return its folder. ConfigError leaves nothing written."""
    check_folder(out)
    source = find_source(path)
    if form == "gguf":
        check_gguf(source)
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as partial:
            folder = Path(partial) / out.name
            folder.mkdir()
            loaders = (_write_gguf if form == "gguf" else _write_hf)(source, folder)
            (folder / "README.md").write_text(model_card(source, **loaders), encoding="utf-8")
            if out.exists():
                out.rmdir()
            folder.rename(out)
    except OSError as error:
        raise ConfigError(
            f"--out {str(out)!r} cannot be written ({error.strerror}); choose another with space for it"
        ) from None
    return out


def _write_gguf(source: ExportSource, folder: Path) -> dict[str, str]:
    """Write one GGUF file; return the statements of the card about loaders."""
    count = write_gguf(source, folder / f"{source.name}-BF16.gguf")
    return {
        "checked": f"{count} tensors, each under its name of llama.cpp's package gguf",
        "tried": "nothing yet; `rocstar import-gguf` reads such a file, which the tests of rocstar show",
        "not_tried": "llama.cpp",
    }


def _write_hf(source: ExportSource, folder: Path) -> dict[str, str]:
    """Write a Hugging Face folder; return the statements of the card about loaders.

    Raises:
        ConfigError: the checkpoint contradicts itself, or holds NaN or infinity.
        OSError: the folder cannot be written.
    """
    for path in source.folder.iterdir():
        is_text = path.is_file() and path.suffix in (".json", ".txt", ".model", ".jinja")
        if is_text and not path.name.endswith(".index.json") and path.name not in REWRITTEN:
            shutil.copy(path, folder / path.name)
    write_json(folder / "config.json", _without(source.config, "torch_dtype") | {"dtype": "bfloat16"})
    write_json(folder / "generation_config.json", generation_config(source))
    write_json(folder / "tokenizer_config.json", _without(source.tokenizer_config, "chat_template"))
    if (template := source.template) is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    _write_weights(source.checked, folder)
    written = check_model(folder)
    load_tokenizer(str(folder))
    name, loader = type(written.model).__name__, f"transformers {version('transformers')}"
    return {
        "checked": f"{len(written.tensors)} weights have the names and shapes of {name}",
        "tried": f"configuration and tokenizer of this folder, loaded by {loader}",
        "not_tried": "SGLang and vLLM with this folder; they read this form",
    }


def generation_config(source: ExportSource) -> dict[str, Any]:
    """How the checkpoint was sampled when it was evaluated, else trained: the whole distribution."""
    path = source.folder / "generation_config.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    ends = {key: source.config.get(key) for key in ("eos_token_id", "pad_token_id")}
    found = {key: value for key, value in ends.items() if value is not None}
    found |= _without(known, "_from_model_config")
    sets = source.recipe.get("eval") or [{}]
    first = sets[0] if isinstance(sets, list) else sets
    temperature = first.get("temperature", source.recipe.get("rl", {}).get("temperature"))
    if not isinstance(temperature, int | float):
        return found
    if temperature == 0:
        return found | {"do_sample": False}
    return found | {"do_sample": True, "temperature": float(temperature), "top_p": 1.0, "top_k": 0}


def _write_weights(source: CheckedFolder, folder: Path) -> None:
    import torch
    from safetensors import safe_open

    from rocstar.train.learner.gather import WeightFile, part_name, write_index

    files: dict[str, str] = {}
    bad, num_bytes = [], 0
    for number, path in enumerate(source.files):
        shapes = {name: one.shape for name, one in source.tensors.items() if one.file == path}
        name_of_part = part_name(number, len(source.files))
        with (
            safe_open(path, "pt") as read,
            WeightFile(folder / name_of_part, list(shapes.items()), torch.bfloat16) as file,
        ):
            for name in shapes:
                weight = read.get_tensor(name)
                file.add(name, weight)
                num_bytes += 2 * weight.numel()
                if not is_finite(weight):
                    bad.append(name)
        files |= dict.fromkeys(shapes, name_of_part)
    check_finite(str(source.path), bad)
    write_index(folder, files, num_bytes)


def _without(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != key}
