"""How large a model is, from its configuration alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rocstar.engine.progress.progress import format_bytes
from rocstar.train.learner.activations import kept_bytes
from rocstar.train.learner.balance import Cost
from rocstar.train.learner.model_io import DTYPES
from rocstar.train.learner.scratch import build_model
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.model_config import LoraConfig, ModelConfig

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


_QWEN3: Final = {"vocab_size": 151936, "head_dim": 128, "num_key_value_heads": 8, "max_position_embeddings": 40960}
_QWEN25: Final = {"vocab_size": 151936, "max_position_embeddings": 32768}
_SMOL: Final = {"vocab_size": 49152, "max_position_embeddings": 8192, "tie_word_embeddings": True}


def _sized(hidden: int, layers: int, heads: int, inner: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        **more,
    }


_QWEN3_SIZES: Final = {
    "0.6B": _sized(1024, 28, 16, 3072, tie_word_embeddings=True),
    "1.7B": _sized(2048, 28, 16, 6144, tie_word_embeddings=True),
    "4B": _sized(2560, 36, 32, 9728, tie_word_embeddings=True),
    "8B": _sized(4096, 36, 32, 12288, tie_word_embeddings=False),
    "14B": _sized(5120, 40, 40, 17408, tie_word_embeddings=False),
    "32B": _sized(5120, 64, 64, 25600, tie_word_embeddings=False),
}
_QWEN25_SIZES: Final = {
    "0.5B": _sized(896, 24, 14, 4864, num_key_value_heads=2, tie_word_embeddings=True),
    "1.5B": _sized(1536, 28, 12, 8960, num_key_value_heads=2, tie_word_embeddings=True),
    "3B": _sized(2048, 36, 16, 11008, num_key_value_heads=2, tie_word_embeddings=True),
    "7B": _sized(3584, 28, 28, 18944, num_key_value_heads=4, vocab_size=152064, tie_word_embeddings=False),
    "14B": _sized(5120, 48, 40, 13824, num_key_value_heads=8, vocab_size=152064, tie_word_embeddings=False),
    "32B": _sized(5120, 64, 40, 27648, num_key_value_heads=8, vocab_size=152064, tie_word_embeddings=False),
}
_SMOL_SIZES: Final = {
    "135M": _sized(576, 30, 9, 1536, num_key_value_heads=3),
    "360M": _sized(960, 32, 15, 2560, num_key_value_heads=5),
    "1.7B": _sized(2048, 24, 32, 8192, num_key_value_heads=32),
}


def _shapes() -> dict[str, tuple[str, dict[str, Any]]]:
    """model_type and fields of its configuration, by hub name."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for size, fields in _QWEN3_SIZES.items():
        for kind in ("", "-Base") if size != "32B" else ("",):
            found[f"Qwen/Qwen3-{size}{kind}"] = ("qwen3", _QWEN3 | fields)
    for size, fields in _QWEN25_SIZES.items():
        for kind in ("", "-Instruct"):
            found[f"Qwen/Qwen2.5-{size}{kind}"] = ("qwen2", _QWEN25 | fields)
    for size, fields in _SMOL_SIZES.items():
        for kind in ("", "-Instruct"):
            found[f"HuggingFaceTB/SmolLM2-{size}{kind}"] = ("llama", _SMOL | fields)
    return found


SHAPES: Final = _shapes()


def known_config(path: str) -> PreTrainedConfig | None:
    """The configuration of a hub name that is listed here, or None."""
    from transformers import AutoConfig

    if path not in SHAPES:
        return None
    kind, fields = SHAPES[path]
    make: Any = AutoConfig  # transformers has no types for it
    found: PreTrainedConfig = make.for_model(kind, **fields)
    return found


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
    build: Any = AutoModelForCausalLM  # transformers has no types for it
    try:
        found = known_config(config.path) or AutoConfig.from_pretrained(config.path, local_files_only=True)
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
