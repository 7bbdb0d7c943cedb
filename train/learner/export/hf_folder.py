"""An exported Hugging Face folder: bfloat16 safetensors, tokenizer, chat template, generation config, card.

Weights go through memory one tensor at a time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from rocstar.train.learner.claims import CheckedFolder, check_folder
from rocstar.train.learner.export.model_card import model_card
from rocstar.train.learner.export.source import ExportSource
from rocstar.train.learner.model_io import check_finite, is_finite, load_tokenizer

REWRITTEN: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "README.md",
)
NOT_TRIED: Final = "SGLang and vLLM with this folder; they read this form"


def write_hf(source: ExportSource, folder: Path) -> None:
    """Write the export of a checkpoint into an empty folder.

    Raises:
        ConfigError: the checkpoint contradicts itself, or holds NaN or infinity.
        OSError: the folder cannot be written.
    """
    for path in source.folder.iterdir():
        is_text = path.suffix in (".json", ".txt", ".model", ".jinja") and not path.name.endswith(
            ".index.json"
        )
        if path.is_file() and is_text and path.name not in REWRITTEN:
            shutil.copy(path, folder / path.name)
    _write_json(folder / "config.json", _without(source.config, "torch_dtype") | {"dtype": "bfloat16"})
    _write_json(folder / "generation_config.json", generation_config(source))
    _write_json(folder / "tokenizer_config.json", _without(source.tokenizer_config, "chat_template"))
    if (template := source.template) is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    _write_weights(source.checked, folder)
    written = check_folder(folder)
    load_tokenizer(str(folder))
    checked = f"{len(written.tensors)} weights have the names and shapes of {type(written.model).__name__}"
    tried = f"configuration and tokenizer of this folder, loaded by transformers {version('transformers')}"
    text = model_card(source, checked=checked, tried=tried, not_tried=NOT_TRIED)
    (folder / "README.md").write_text(text, encoding="utf-8")


def generation_config(source: ExportSource) -> dict[str, Any]:
    """How the checkpoint was sampled when it was evaluated, else trained: the whole distribution."""
    path = source.folder / "generation_config.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    ends = {
        "eos_token_id": source.config.get("eos_token_id"),
        "pad_token_id": source.config.get("pad_token_id"),
    }
    found = {key: value for key, value in ends.items() if value is not None} | _without(
        known, "_from_model_config"
    )
    temperature = _temperature(source.recipe)
    if temperature is None:
        return found
    if temperature == 0:
        return found | {"do_sample": False}
    return found | {"do_sample": True, "temperature": temperature, "top_p": 1.0, "top_k": 0}


def _temperature(recipe: Mapping[str, Any]) -> float | None:
    sets = recipe.get("eval") or [{}]
    first = sets[0] if isinstance(sets, list) else sets
    found = first.get("temperature", recipe.get("rl", {}).get("temperature"))
    return float(found) if isinstance(found, int | float) else None


def _write_weights(source: CheckedFolder, folder: Path) -> None:
    import torch
    from safetensors import safe_open

    from rocstar.train.learner.weight_file import WeightFile, part_name, write_index

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


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
