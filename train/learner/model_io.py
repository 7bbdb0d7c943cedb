"""Load models and tokenizers from a directory or the hub, with errors that say what to do."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from rocstar.engine.progress.progress import format_bytes, working
from rocstar.train.learner import hub
from rocstar.train.learner.claims import CheckedFolder, check_folder, refused
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.paths import missing_path_hint

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
HEAD_DTYPES = {"model": None, "float32": torch.float32}
"""dtype of `model.head_dtype`; None: that of the model."""
FILES, OTHER_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "*.safetensors"], ["*/*", "consolidated*"]
"""Files downloaded from a repository; some have the weights twice, as consolidated*.safetensors."""


def check_model_path(path: str) -> None:
    """Fail before anything is built: a local path must be a directory with a model and a tokenizer."""
    directory = Path(path)
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1 or directory.exists()
    if not looks_local:
        return  # a hub name: only loading can check it
    if not directory.is_dir():
        problem = "is a file" if directory.is_file() else f"does not exist{missing_path_hint(directory)}"
        raise ConfigError(f"model.path = {path!r} {problem}; give a Hugging Face directory or a hub name")
    if (directory / "checkpoints").is_dir() and not (directory / "config.json").exists():
        raise ConfigError(f"model.path = {path!r} is a run; give one of its checkpoints, {path}/checkpoints/step_N")
    if not (directory / "config.json").is_file():
        raise ConfigError(f"model.path = {path!r} has no config.json; it is not a Hugging Face model directory")
    if not any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ConfigError(
            f"model.path = {path!r} has no tokenizer; copy tokenizer.json and tokenizer_config.json there"
        )


def is_here(path: str) -> bool:
    """Whether there is such a folder, or the hub's cache has the name."""
    return Path(path).is_dir() or hub.is_cached(path, "models")


def nowhere(path: str) -> str:
    return f"model.path = {path!r} is no folder here and not in the hub's cache"


def check_on_hub(path: str) -> None:
    """ConfigError unless the hub has such a model; `hub.Unreachable` where that cannot be known."""
    if not hub.exists(path, "models"):
        raise ConfigError(
            f"{nowhere(path)}, and the hub shows no such model to this user; give a Hugging Face directory "
            "or a hub name, or log in with `hf auth login`"
        )


def check_can_load(path: str) -> None:
    """Fail early if loading would: for an unknown name transformers retries for most of a minute."""
    check_model_path(path)
    if is_here(path):
        return
    try:
        check_on_hub(path)
    except hub.Unreachable as error:
        raise ConfigError(
            f"{nowhere(path)}, and the hub cannot be asked ({error}); give a Hugging Face directory"
        ) from None


def checked_folder(path: str) -> CheckedFolder:
    """Return the model folder of `path`, a directory or a hub name, after `check_folder`. Files missing in
    the hub's cache are downloaded.

    Raises:
        ConfigError: there is no such model, or its files contradict each other.
    """
    from huggingface_hub import snapshot_download

    folder = Path(path)
    if not folder.is_dir():
        with _usable(path, "cannot be loaded"):
            folder = Path(snapshot_download(path, allow_patterns=FILES, ignore_patterns=OTHER_FILES))
    try:
        return check_folder(folder)
    except ConfigError as error:
        raise ConfigError(f"model.path: {error}") from None


def load_max_positions(path: str) -> int | None:
    """The longest sequence the model can take; None if its configuration does not say."""
    with _usable(path, "cannot be loaded"):
        config: Any = AutoConfig.from_pretrained(path)
    positions: int | None = getattr(config, "max_position_embeddings", None)
    return positions


def vocabulary_size(path: str) -> int | None:
    """Rows of the model's head; None if its configuration does not say."""
    with _usable(path, "cannot be loaded"):
        config: Any = AutoConfig.from_pretrained(path)
    rows: int | None = getattr(config.get_text_config(), "vocab_size", None)
    return rows


def load_model(path: str, dtype: Literal["float32", "bfloat16"]) -> PreTrainedModel:
    """Load a causal LM from a directory or the hub into allocated memory. ConfigError if it cannot be loaded.

    A weight in a memory-mapped file is aligned by the file's header. Its products may round differently from
    those of weights that torch allocated, and a resumed run would not equal an uninterrupted one.
    """
    with working(f"loading the model {_described(path)}"):
        folder = checked_folder(path).path
        with _usable(path, "cannot be loaded"):
            model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype])
        bad = []
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data.clone()
            if not is_finite(parameter.data):
                bad.append(name)
        check_finite(path, bad)
    result: PreTrainedModel = model
    return result


def is_finite(weight: torch.Tensor) -> bool:
    """Whether all numbers are finite. Its sum is, then, unless it overflows: the exact test is slower."""
    return bool(weight.sum(dtype=torch.float32).isfinite() or weight.isfinite().all())


def check_finite(path: str, bad: Sequence[str]) -> None:
    """ConfigError if a model has tensors that are not finite: `bad` are their names."""
    if bad:
        raise ConfigError(
            f"model.path = {path!r}: {len(bad)} of its tensors hold NaN or infinity, {bad[0]} first; take an "
            "earlier checkpoint or another copy of the model"
        )


def _usable(path: str, problem: str) -> AbstractContextManager[None]:
    """Refuse what libraries cannot read of a model, and say where it was looked for."""
    where = "" if Path(path).exists() else "; no folder of that name is here, and the hub was asked for it"
    return refused(f"model.path = {path!r} {problem}", where)


def _described(path: str) -> str:
    """Where it comes from and how much it is, as far as that is known beforehand."""
    folder = Path(path)
    if not folder.is_dir():
        return f"{path} from the hub, or this machine's cache of it"
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return f"in {path}" + (f" ({format_bytes(size)})" if size >= 1e8 else "")


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """The tokenizer beside a model, each token of which has a row in the model's embedding.

    Rows without a token (padding) are usual.

    Raises:
        ConfigError: there is none that works, or it is another model's.
    """
    with _usable(path, "has no usable tokenizer"):
        tokenizer: Any = AutoTokenizer.from_pretrained(path)
    rows, last = vocabulary_size(path), max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if rows is not None and last[1] >= rows:
        raise ConfigError(
            f"model.path = {path!r}: token {last[0]!r:.40} has id {last[1]}, the model only {rows} rows; "
            "take the tokenizer that belongs to the model, or resize its embeddings and save it again"
        )
    result: PreTrainedTokenizerBase = tokenizer
    return result


def chosen_model(recipe: Recipe, model: str | None) -> str:
    """The path that was meant. ConfigError if none was."""
    path = model or recipe.model.path
    if path == "scratch":
        raise ConfigError("model.path is 'scratch'; pass --model with a checkpoint directory")
    return path
