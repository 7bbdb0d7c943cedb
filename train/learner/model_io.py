"""Load models and tokenizers from a directory or the hub, with errors that say what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from rocstar.engine.progress.progress import working
from rocstar.train.learner import hub
from rocstar.train.learner.claims import UNUSABLE, check_folder
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.paths import elsewhere

disable_progress_bar()  # type: ignore[no-untyped-call]  # its lines would tear the live status

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
HEAD_DTYPES = {"model": None, "float32": torch.float32}
"""Of `model.head_dtype`; None: that of the model."""


def check_model_path(path: str) -> None:
    """Fail before anything is built: a local path must be a directory with a model and a tokenizer."""
    directory = Path(path)
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1 or directory.exists()
    if not looks_local:
        return  # a hub name: only loading can tell
    if not directory.is_dir():
        problem = "is a file" if directory.is_file() else f"does not exist{elsewhere(directory)}"
        raise ConfigError(f"model.path = {path!r} {problem}; give a Hugging Face directory or a hub name")
    if (directory / "checkpoints").is_dir() and not (directory / "config.json").exists():
        raise ConfigError(
            f"model.path = {path!r} is a run; give one of its checkpoints, {path}/checkpoints/step_N"
        )
    if not (directory / "config.json").is_file():
        raise ConfigError(
            f"model.path = {path!r} has no config.json; it is not a Hugging Face model directory"
        )
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
    """Fail at once where loading would: of a name that nobody has transformers asks for most of a minute."""
    check_model_path(path)
    if is_here(path):
        return
    try:
        check_on_hub(path)
    except hub.Unreachable as error:
        raise ConfigError(
            f"{nowhere(path)}, and the hub cannot be asked ({error}); give a Hugging Face directory"
        ) from None


def has_safetensors(folder: str | Path) -> bool:
    """Whether another process can load the weights that lie there."""
    return Path(folder).is_dir() and any(Path(folder).glob("*.safetensors"))


def local_folder(path: str) -> Path:
    """The folder with safetensors that `path` names: a directory, or what the hub's cache has of a name.

    Raises:
        ConfigError: there is none; another process than ours cannot load such a model.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    folder = Path(path)
    if not folder.is_dir():
        try:
            folder = Path(snapshot_download(path, local_files_only=True))
        except (LocalEntryNotFoundError, ValueError) as error:
            raise ConfigError(f"model.path = {path!r} is not on this machine: {_first_line(error)}") from None
    if not has_safetensors(folder):
        raise ConfigError(
            f"model.path = {path!r} has no *.safetensors, which a server needs; load it once and save it "
            "with save_pretrained"
        )
    return folder.absolute()


def load_max_positions(path: str) -> int | None:
    """The longest sequence the model can take; None if its configuration does not say."""
    try:
        config: Any = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise _not_usable(path, "cannot be loaded", error) from None
    positions: int | None = getattr(config, "max_position_embeddings", None)
    return positions


def vocabulary_size(path: str) -> int | None:
    """Rows of the model's head; None if its configuration does not say."""
    try:
        config: Any = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise _not_usable(path, "cannot be loaded", error) from None
    rows: int | None = getattr(config.get_text_config(), "vocab_size", None)
    return rows


def check_vocabulary(path: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Every token must have a row in the model's head; rows without a token (padding) are fine.

    Raises:
        ConfigError: the tokenizer can write ids that the head does not have.
    """
    rows = vocabulary_size(path)
    if rows is not None and len(tokenizer) > rows:
        raise ConfigError(
            f"model.path = {path!r}: the tokenizer has {len(tokenizer)} tokens, the model's head only {rows} "
            "rows; take the tokenizer that belongs to the model, or resize its embeddings and save it again"
        )


def load_model(path: str, dtype: Literal["float32", "bfloat16"]) -> PreTrainedModel:
    """A causal LM from a directory or the hub, in memory of its own. ConfigError if it cannot be loaded.

    A weight in the file's mapping lies where the file's header ends. Products of such rows round otherwise
    than those of weights that torch allocated, and a run that is resumed would not be the one that went on.
    """
    with working(f"loading the model {_described(path)}"):
        check_folder(Path(path))
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=DTYPES[dtype])
        except (*UNUSABLE, SafetensorError) as error:
            raise _not_usable(path, "cannot be loaded", error) from None
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
    result: PreTrainedModel = model
    return result


def _not_usable(path: str, problem: str, error: Exception) -> ConfigError:
    """What is wrong with a model, and where it was looked for."""
    text = f"model.path = {path!r} {problem}: {_first_line(error)}"
    if Path(path).exists():
        return ConfigError(text)
    return ConfigError(f"{text.rstrip('.')}; no folder of that name is here, and the hub was asked for it")


def _described(path: str) -> str:
    """Where it comes from and how much it is, as far as that is known beforehand."""
    folder = Path(path)
    if not folder.is_dir():
        return f"{path} from the hub, or this machine's cache of it"
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return f"in {path}" + (f" ({size / 1e9:.1f} GB)" if size >= 1e8 else "")


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """The tokenizer beside a model. ConfigError if there is none that works."""
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:  # KeyError: a tokenizer.json that lacks a part
        raise _not_usable(path, "has no usable tokenizer", error) from None
    result: PreTrainedTokenizerBase = tokenizer
    return result


def _first_line(error: Exception) -> str:
    """What transformers says first; the rest of its messages is advice about the hub."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def chosen_model(recipe: Recipe, model: str | None) -> str:
    """The path that was meant. ConfigError if none was."""
    path = model or recipe.model.path
    if path == "scratch":
        raise ConfigError("model.path is 'scratch'; pass --model with a checkpoint directory")
    return path


def model_on_disk(recipe: Recipe, model: str | None) -> str:
    """The path that was meant. ConfigError if there is no model to load."""
    path = chosen_model(recipe, model)
    check_can_load(path)
    return path
