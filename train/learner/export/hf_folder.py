"""An exported Hugging Face folder: bfloat16 safetensors, tokenizer, chat template, generation config, card.

Weights go through memory one tensor at a time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rocstar.train.learner.claims import UNUSABLE, check_folder, first_line
from rocstar.train.learner.export.model_card import model_card
from rocstar.train.learner.export.source import ExportSource
from rocstar.train.recipe.errors import ConfigError

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
        ConfigError: the weights are not those of the architecture that config.json names.
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
    num_weights = _write_weights(source, folder)
    version = _load_texts(folder)
    checked = f"{num_weights} weights have the names and shapes of {source.config['architectures'][0]}"
    tried = f"configuration and tokenizer of this folder, loaded by transformers {version}"
    text = model_card(source, checked=checked, tried=tried, not_tried=NOT_TRIED)
    (folder / "README.md").write_text(text, encoding="utf-8")


def _load_texts(folder: Path) -> str:
    """The version of transformers that loaded what was written. ConfigError if it cannot."""
    import transformers

    any_transformers: Any = transformers
    try:
        any_transformers.AutoConfig.from_pretrained(folder)
        any_transformers.AutoTokenizer.from_pretrained(folder)
    except (ValueError, OSError, KeyError) as error:
        raise ConfigError(f"what was written cannot be loaded: {error}") from None
    return str(any_transformers.__version__)


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


def _write_weights(source: ExportSource, folder: Path) -> int:
    """How many there are, once all are written."""
    import torch
    from safetensors import SafetensorError, safe_open

    from rocstar.train.learner.weight_file import WeightFile, part_name, write_index

    expected = _expected_shapes(source)
    files: dict[str, str] = {}
    num_bytes = 0
    try:
        for number, path in enumerate(source.weight_files):
            with safe_open(path, "pt") as read:
                shapes = {name: list(read.get_slice(name).get_shape()) for name in sorted(read.keys())}
                _check(shapes, expected, path)
                name_of_part = part_name(number, len(source.weight_files))
                with WeightFile(folder / name_of_part, list(shapes.items()), torch.bfloat16) as file:
                    for name in shapes:
                        weight = read.get_tensor(name)
                        file.add(name, weight)
                        num_bytes += 2 * weight.numel()
                files |= dict.fromkeys(shapes, name_of_part)
    except SafetensorError as error:
        raise ConfigError(f"the weights of {str(source.folder)!r} cannot be read: {error}") from None
    if missing := sorted(expected.keys() - files.keys()):
        raise ConfigError(f"{str(source.folder)!r} lacks {len(missing)} weights, {missing[0]!r} first")
    write_index(folder, files, num_bytes)
    return len(files)


def _check(shapes: Mapping[str, list[int]], expected: Mapping[str, list[int]], path: Path) -> None:
    for name, shape in shapes.items():
        if expected.get(name, shape if name == "lm_head.weight" else None) != shape:
            there = f"{expected[name]}" if name in expected else "none of that name"
            raise ConfigError(f"{str(path)!r}: {name!r} is {shape}, config.json asks for {there}")


def _expected_shapes(source: ExportSource) -> dict[str, list[int]]:
    """Of every weight that the architecture has, tied ones once; nothing is allocated."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    check_folder(source.folder)
    any_config: Any = AutoConfig
    any_model: Any = AutoModelForCausalLM
    try:
        with torch.device("meta"):
            model = any_model.from_config(any_config.from_pretrained(source.folder))
    except UNUSABLE as error:
        raise ConfigError(
            f"{str(source.folder)!r} is no causal language model that is known: {first_line(error)}"
        ) from None
    return {name: list(parameter.shape) for name, parameter in model.named_parameters()}


def _without(told: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in told.items() if name != key}


def _write_json(path: Path, told: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
