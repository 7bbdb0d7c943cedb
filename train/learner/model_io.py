"""Load models and tokenizers from a directory or the hub, with errors that say what to do; the size of a model."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from rocstar.engine.progress.progress import format_bytes, working
from rocstar.train.learner import hub
from rocstar.train.learner.activations import kept_bytes
from rocstar.train.learner.balance import Cost
from rocstar.train.learner.claims import CheckedFolder, check_folder, refused
from rocstar.train.learner.scratch import build_model
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.model_config import LoraConfig, ModelConfig
from rocstar.train.recipe.paths import missing_path_hint

_FAMILIES: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("models.toml").read_text(encoding="utf-8"))
SHAPES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    f"{family}-{size}{variant}": (entry["model_type"], entry["fields"] | fields)
    for family, entry in _FAMILIES.items()
    for size, fields in entry["sizes"].items()
    for variant in entry["variants"]
    if f"{size}{variant}" not in entry.get("absent", ())
}
"""model_type and fields of its configuration, by hub name."""


GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Counts of parameters; a tied one counts once."""

    parameters: int
    layer_parameters: int
    """Parameters of one decoder layer."""
    layers: int
    hidden: int
    vocabulary: int
    kv_values_per_token: int
    """Keys and values of all layers."""
    dtype_bytes: int
    """Bytes of a number in forward and backward."""
    kept_per_token: int
    """Bytes of activations that all layers keep of a token."""
    kept_inputs_per_token: int
    """The same where layers keep their input alone and are run again, one by one."""
    adapters: int = 0
    """Parameters of adapters, which then learn alone; 0: all do."""

    @property
    def root_parameters(self) -> int:
        """Embedding, head and last norm."""
        return self.parameters - self.layers * self.layer_parameters

    def learner_bytes(self, ranks: int) -> float:
        """The memory of each of `ranks`: weights, gradients, moments, and FSDP's gathered units."""
        if self.adapters:
            return self.dtype_bytes * self.parameters + 16 * self.adapters
        held = 16 * self.parameters / ranks
        if ranks > 1 or self.dtype_bytes < 4:
            held += 2 * self.dtype_bytes * (self.root_parameters + self.layer_parameters)
        return held


def row_cost(model: PreTrainedModel) -> Cost:
    """The cost of a row of tokens in FLOPs of a forward: two for each multiplication."""
    config = model.config
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    head = config.hidden_size * config.vocab_size
    body = sum(p.numel() for p in model.parameters()) - head * (1 if config.tie_word_embeddings else 2)
    return Cost(per_token=2.0 * body, per_pair=4.0 * config.num_hidden_layers * width, per_target=2.0 * head)


def memory_row(name: str, num_bytes: float, text: str) -> str:
    """A line of a plan: name, bytes and explanation."""
    return f"  {name:<12} {format_bytes(num_bytes):>10}  {text}"


def model_without_weights(config: ModelConfig) -> PreTrainedModel:
    """Build the recipe's model on torch's device `meta`. Reads no weights and asks no hub.

    Raises ConfigError if its configuration is not on this machine.
    """
    if config.path == "scratch":
        with torch.device("meta"):  # counts need no weights: those of 4B parameters take a minute
            return build_model(config.scratch, config.scratch.vocab_size, seed=0)
    make: Any = AutoConfig  # transformers has no types for these two
    build: Any = AutoModelForCausalLM
    try:
        if config.path in SHAPES:
            kind, fields = SHAPES[config.path]
            found = make.for_model(kind, **fields)
        else:
            found = make.from_pretrained(config.path, local_files_only=True)
        with torch.device("meta"):
            model: PreTrainedModel = build.from_config(found, dtype=torch.float32)
    except (OSError, ValueError):
        raise ConfigError(
            f"the configuration of {config.path!r} is not on this machine; a folder with its config.json "
            "as --model.path is enough"
        ) from None
    return model


def measure(config: ModelConfig, lora: LoraConfig | None = None) -> ModelSize | str:
    """Return the size of a recipe's model with its adapters, or the reason why it is unknown."""
    try:
        model: Any = model_without_weights(config)
    except ConfigError as error:
        return str(error)
    lora = lora or LoraConfig()
    of = model.config.get_text_config()
    layers = model.get_decoder().layers
    kept = partial(kept_bytes, of, DTYPES[config.dtype].itemsize, adapted=lora.rank > 0)
    head_dim = getattr(of, "head_dim", None) or of.hidden_size // of.num_attention_heads
    return ModelSize(
        parameters=_count(model),
        layer_parameters=_count(layers[0]),
        layers=len(layers),
        hidden=of.hidden_size,
        vocabulary=of.vocab_size,
        kv_values_per_token=2 * len(layers) * of.num_key_value_heads * head_dim,
        dtype_bytes=DTYPES[config.dtype].itemsize,
        kept_per_token=kept(1, inputs_alone=False),
        kept_inputs_per_token=kept(1, inputs_alone=True),
        adapters=sum(
            lora.rank * (module.in_features + module.out_features)
            for path, module in model.named_modules()
            if isinstance(module, nn.Linear) and path.rpartition(".")[2] in lora.targets
        ),
    )


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


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
    positions: int | None = getattr(_load_config(path), "max_position_embeddings", None)
    return positions


def vocabulary_size(path: str) -> int | None:
    """Rows of the model's head; None if its configuration does not say."""
    rows: int | None = getattr(_load_config(path).get_text_config(), "vocab_size", None)
    return rows


def _load_config(path: str) -> Any:
    with _usable(path, "cannot be loaded"):
        return AutoConfig.from_pretrained(path)


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
