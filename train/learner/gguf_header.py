"""The declarations of a GGUF file, read without its weights, and the check that an import uses all of them.

24 bytes: GGUF, version, counts | keys: name, type, value | tensors: name, dimensions, type, offset | data
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rocstar.train.learner.claims import first_line, some
from rocstar.train.learner.export.gguf_file import ARCHITECTURES, gguf_names
from rocstar.train.recipe.errors import ConfigError

_HEAD = struct.Struct("<4sIQQ")
_SCALARS: Final = {
    **{0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f"},
    **{7: "<?", 10: "<Q", 11: "<q", 12: "<d"},
}
"""How a value of each type is packed. The others are text (8) and arrays (9)."""
_TEXT, _ARRAY = 8, 9
_LEAST_KEY_BYTES, _LEAST_TENSOR_BYTES, _MAX_DIMENSIONS = 13, 24, 8
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
class Described:
    """A tensor as the header describes it."""

    shape: tuple[int, ...]
    """As torch has it; the file has it reversed."""
    kind: int
    """Type numbers of ggml."""
    offset: int
    """From the beginning of the data."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a GGUF file."""

    keys: Mapping[str, Any]
    """Values of keys; of an array how many it has."""
    tensors: Mapping[str, Described]
    data_bytes: int
    """Bytes of the file after its header."""


def read_header(path: Path) -> Header:
    """Read the header of a file. ConfigError for one that is damaged, or claims more than the file holds."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size or not head.startswith(b"GGUF"):
                raise ConfigError(f"{str(path)!r} is no GGUF file: it does not begin with a header of one")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Cursor(data, path).header(*_HEAD.unpack(head)[2:])
    except (struct.error, ValueError, OSError, OverflowError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {first_line(error)}") from None


class _Cursor:
    """A place in a file that is read from its beginning."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data, self._path, self._at = data, path, _HEAD.size

    def header(self, num_tensors: int, num_keys: int) -> Header:
        size = len(self._data)
        if num_tensors * _LEAST_TENSOR_BYTES + num_keys * _LEAST_KEY_BYTES > size - _HEAD.size:
            raise ConfigError(
                f"{str(self._path)!r}: its header claims {num_tensors} tensors and {num_keys} keys, more "
                f"than {size} bytes hold"
            )
        keys = self._unique("key", ((self._text(), self._value(self._number("<I"))) for _ in range(num_keys)))
        tensors = self._unique("tensor", ((self._text(), self._tensor()) for _ in range(num_tensors)))
        alignment = keys.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"general.alignment = {alignment!r}")
        return Header(keys, tensors, size - -(-self._at // alignment) * alignment)

    def _unique(self, what: str, pairs: Iterator[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise ValueError(f"the {what} {name[:80]!r} is there twice")
            found[name] = value
        return found

    def _number(self, packed: str) -> Any:
        (value,) = struct.unpack_from(packed, self._data, self._at)
        self._at += struct.calcsize(packed)
        return value

    def _skip(self, num_bytes: int) -> int:
        start = self._at
        if num_bytes > len(self._data) - start:
            raise ValueError(f"{num_bytes} bytes are claimed at {start}, and the file has {len(self._data)}")
        self._at += num_bytes
        return start

    def _text(self) -> str:
        length = self._number("<Q")
        start = self._skip(length)
        return self._data[start : start + length].decode("utf-8", errors="replace")

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind != _ARRAY:
            if kind not in _SCALARS:
                raise ValueError(f"a value has type {kind}, which GGUF does not have")
            return self._number(_SCALARS[kind])
        of, count = self._number("<I"), self._number("<Q")
        if of == _TEXT:
            self._skip(0 if count <= len(self._data) else count)
            for _ in range(count):
                self._skip(self._number("<Q"))
        elif of in _SCALARS:
            self._skip(count * struct.calcsize(_SCALARS[of]))
        else:
            raise ValueError(f"an array has values of type {of}")
        return count

    def _tensor(self) -> Described:
        count = self._number("<I")
        if count > _MAX_DIMENSIONS:
            raise ValueError(f"a tensor has {count} dimensions")
        shape = [self._number("<Q") for _ in range(count)]
        return Described(tuple(reversed(shape)), self._number("<I"), self._number("<Q"))


def checked_header(path: Path) -> Header:
    """The header of a file. ConfigError, with names, for keys that an import has no use for."""
    header = read_header(path)
    kind = header.keys.get("general.architecture")
    if kind not in ARCHITECTURES:
        raise ConfigError(
            f"{str(path)!r}: general.architecture = {kind!r:.40} is not imported, only {', '.join(ARCHITECTURES)}"
        )
    _refuse(path, [*_unused_keys(header.keys, f"{kind}."), *_data_problems(header)])
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


def _data_problems(header: Header) -> Iterator[str]:
    """Tensors that lie over each other or behind the end of the file."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    end, last = 0, ""
    for name, one in sorted(header.tensors.items(), key=lambda pair: pair[1].offset):
        try:
            block, num_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(one.kind)]
        except (ValueError, KeyError):
            yield f"{name} has type {one.kind}, which is unknown"
            return
        if one.offset < end:
            yield f"{name} lies over {last}"
            return
        end, last = one.offset + math.prod(one.shape) // block * num_bytes, name
    if end > header.data_bytes:
        yield f"{last} ends at {end}, and the file has {header.data_bytes} bytes of data"


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
        if header.tensors[name].shape != asked[name]:
            yield f"{name} is {list(header.tensors[name].shape)}, its keys ask for {list(asked[name])}"
            return
