"""The declarations of a GGUF file, and the check that an import uses all of them.

The package `gguf` reads them, as it does for transformers; here no read goes beyond the end of the file.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf import GGUFReader, GGUFValueType

from rocstar.train.learner.claims import refused, some
from rocstar.train.learner.export.gguf_file import ARCHITECTURES, gguf_names
from rocstar.train.recipe.errors import ConfigError

USED: Final = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "rope.dimension_count": "head_dim",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
"""Keys of an architecture, and the fields of the imported configuration that must have their values."""
WITHOUT_EFFECT: Final = {
    "rope.scaling.type": "none",
    "rope.scaling.factor": 1.0,
    "expert_count": 0,
    "expert_used_count": 0,
    "attention.sliding_window": 0,
    "attention.causal": True,
}
"""Keys of an architecture that change nothing with this value."""
_TOKENIZER = {
    *("model", "pre", "tokens", "token_type", "scores", "merges"),
    *("add_bos_token", "add_eos_token", "add_space_prefix"),
}


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a GGUF file."""

    keys: Mapping[str, Any]
    """Values of keys; of an array how many it has."""
    tensors: Mapping[str, tuple[int, ...]]
    """Shapes as torch has them; the file has them reversed."""


class _BoundedReader(GGUFReader):
    """Reads nothing that the file does not have: a header may claim 2^60 values."""

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        end = int(offset) + int(count) * np.dtype(dtype).itemsize
        if end > len(self.data):
            raise ValueError(f"its header claims {end} bytes, and the file has {len(self.data)}")
        return super()._get(offset, dtype, count, override_order)


def read_header(path: Path) -> Header:
    """Read the header of a file. ConfigError for one that is damaged, or claims more than the file holds."""
    with refused(f"{str(path)!r} cannot be read as GGUF"):
        reader = _BoundedReader(path)
        for one, other in itertools.pairwise(sorted(reader.tensors, key=lambda tensor: tensor.data_offset)):
            if one.data_offset + one.n_bytes > other.data_offset:
                raise ValueError(f"{other.name} lies over {one.name}")
        fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
        tensors = {tensor.name: tuple(reversed(tensor.shape.tolist())) for tensor in reader.tensors}
        is_array = {name: GGUFValueType.ARRAY in field.types for name, field in fields.items()}
        keys = {name: len(field.data) if is_array[name] else field.contents() for name, field in fields.items()}
        return Header(keys, tensors)


def checked_header(path: Path) -> Header:
    """The header of a file. ConfigError, with names, for keys that an import has no use for."""
    header = read_header(path)
    kind = header.keys.get("general.architecture")
    if kind not in ARCHITECTURES:
        raise ConfigError(
            f"{str(path)!r}: general.architecture = {kind!r:.40} is not imported, only {', '.join(ARCHITECTURES)}"
        )
    _refuse(path, list(_unused_keys(header.keys, f"{kind}.")))
    return header


def check_imported(path: Path, header: Header, model: Any) -> None:
    """ConfigError, with names, unless a model has each value and each tensor of the file that it was read
    from."""
    own = f"{header.keys['general.architecture']}."
    _refuse(path, [*_other_values(header.keys, own, model.config), *_other_tensors(header, model)])


def _refuse(path: Path, problems: list[str]) -> None:
    if problems:
        raise ConfigError(
            f"{str(path)!r} cannot be imported as the model that it is: {'; '.join(problems)}; take the "
            "model's folder of safetensors"
        )


def _unused_keys(keys: Mapping[str, Any], own: str) -> Iterator[str]:
    if unused := [name for name, value in keys.items() if not _is_used(name, value, own)]:
        yield f"an import has no use for {', '.join(f'{name} = {keys[name]!r:.40}' for name in unused[:8])}"
    num_tokens = keys.get("tokenizer.ggml.tokens")
    for name, value in keys.items():
        if name.endswith("_token_id") and not (isinstance(num_tokens, int) and 0 <= value < num_tokens):
            yield f"{name} = {value!r:.40}, and there are {num_tokens} tokens"


def _is_used(name: str, value: Any, own: str) -> bool:
    room, _, rest = name.partition(".")
    if name.startswith(own):
        key = name.removeprefix(own)
        return key in USED or (key in WITHOUT_EFFECT and value == WITHOUT_EFFECT[key])
    if room == "tokenizer":
        key = rest.removeprefix("ggml.")
        return rest == "chat_template" or key in _TOKENIZER or key.endswith("_token_id")
    if name == "general.type":
        return bool(value == "model")
    if room == "split":
        return name != "split.count" or value <= 1
    return room in ("general", "quantize")


def _other_values(keys: Mapping[str, Any], own: str, config: Any) -> Iterator[str]:
    defaults = {f"{own}rope.freq_base": 10_000.0}  # llama.cpp's
    for name, value in (defaults | dict(keys)).items():
        field = USED.get(name.removeprefix(own)) if name.startswith(own) else None
        if field is None:
            continue
        found: Any = getattr(config, field, None)
        if field == "rope_theta":
            found = config.rope_parameters["rope_theta"]
        elif found is None and field == "head_dim":
            found = config.hidden_size // config.num_attention_heads
        if not isinstance(value, int | float) or not math.isclose(value, found, rel_tol=1e-6):
            yield f"{name} = {value!r:.40} becomes {field} = {found!r:.40}"


def _other_tensors(header: Header, model: Any) -> Iterator[str]:
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    names = gguf_names(shapes, model.config.model_type, model.config.num_hidden_layers)
    asked = {names[name]: shape for name, shape in shapes.items()}
    if surplus := sorted(header.tensors.keys() - asked.keys()):
        yield f"an import has no use for {some(surplus)}"
    if missing := sorted(asked.keys() - header.tensors.keys()):
        yield f"it lacks {some(missing)}"
    for name in sorted(asked.keys() & header.tensors.keys()):
        if header.tensors[name] != asked[name]:
            yield f"{name} is {list(header.tensors[name])}, its keys ask for {list(asked[name])}"
            return
