"""A model folder compared with its own declarations: each load, export and import calls `check_folder`.

    config.json ──> modules on torch's device `meta` ──┐
    index, headers of the safetensors ─────────────────┴─> CheckedFolder, or one ConfigError with names

transformers itself maps the tensors to the modules, on tensors without memory. Only headers are read, and the
values of a head stored beside the embedding it is tied to.
"""

import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import LoadStateDictConfig
from transformers.utils.logging import disable_progress_bar

from rocstar.sandbox.command_line import format_error
from rocstar.train.learner.gather import INDEX, SINGLE
from rocstar.train.recipe.errors import ConfigError

disable_progress_bar()  # type: ignore[no-untyped-call]  # its lines would tear the live status

MAX_LAYERS, MAX_EXPERTS = 4096, 8192
UNUSABLE = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError),
    *(NotImplementedError, OSError, RecursionError, RuntimeError, TypeError, ValueError),
    *(struct.error, SafetensorError, StrictDataclassError),
)
"""Exceptions of transformers, torch and safetensors for a damaged or hostile model folder or GGUF file."""
FLOATS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Types of weights in safetensors, and their names in config.json."""
_OLD_BUFFERS = re.compile(r"(^|\.)(rotary_emb\.inv_freq|masked_bias)$")
"""Constants that older releases of transformers saved with the weights."""
_SHOWN = 3
"""Names of a kind that a refusal shows."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str
    """As safetensors names it: F32, BF16, ..."""


@dataclass(frozen=True, slots=True)
class CheckedFolder:
    """A model folder whose declarations and tensors agree."""

    path: Path
    model: PreTrainedModel
    """Its modules on the device `meta`, in float32."""
    tensors: Mapping[str, StoredTensor]
    """The model's tensors by their names in the files; the constants of `_OLD_BUFFERS` are left out."""

    @property
    def files(self) -> list[Path]:
        """The files that have the tensors, in order."""
        return sorted({stored.file for stored in self.tensors.values()})


def check_folder(folder: Path) -> CheckedFolder:
    """Compare a folder's config.json, generation_config.json, index and tensors. ConfigError names all that
    disagrees."""
    config = read_config(folder)
    build: Any = AutoModelForCausalLM  # transformers has no types for it or for its result
    what = f"{str(folder)!r}: config.json describes no causal language model that is known"
    with refused(what), torch.device("meta"):
        model = build.from_config(config, dtype=torch.float32, trust_remote_code=False)
    stored, problems = _read_headers(folder)
    raw = read_json_object(folder / "config.json")
    tensors, of_tensors = _compare_tensors(model, stored)
    problems += of_tensors
    problems += _type_problems(raw, tensors.values())
    problems += _id_problems(folder, config.get_text_config().vocab_size)
    problems += _architecture_problems(raw)
    if problems:
        raise ConfigError(
            f"{str(folder)!r} contradicts itself: {'; '.join(problems)}; take the folder as it was "
            "published, or save the model again with save_pretrained"
        )
    return CheckedFolder(folder, model, tensors)


def read_config(folder: Path) -> Any:
    """transformers' configuration of a folder. ConfigError for one that no model has, or that means different
    models to different readers. No weights are needed."""
    path = folder / "config.json"
    if (folder / "adapter_config.json").is_file():
        raise ConfigError(
            f"{str(folder)!r} holds adapters (adapter_config.json), not a model; merge them into their model "
            "and give the merged folder"
        )
    raw = read_json_object(path)
    _check_numbers(raw, path)
    for name in ("quantization_config", "compression_config"):
        if raw.get(name):
            raise ConfigError(
                f"{str(path)!r}: {name} says that the weights are quantized; take the model's folder with "
                "weights in bfloat16, float16 or float32"
            )
    _check_rope(raw, path)
    make: Any = AutoConfig
    with refused(f"{str(path)!r} cannot be loaded"):
        config = make.from_pretrained(folder, trust_remote_code=False)
    for rope in _rope_tables(getattr(config.get_text_config(), "rope_parameters", None)):
        kind = rope.get("rope_type", "default")
        if kind != "default" and kind not in ROPE_INIT_FUNCTIONS:
            known = ", ".join(("default", *ROPE_INIT_FUNCTIONS))
            raise ConfigError(f"{str(path)!r}: rope_type = {kind!r:.40} is unknown; known are {known}")
    return config


def read_json_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {format_error(error, path)}; pass a complete model folder") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{str(path)!r} is not a JSON object")
    return found


def _check_numbers(config: Mapping[str, Any], path: Path) -> None:
    """A configuration of 10^9 layers would be built layer by layer."""
    for name, value in config.items():
        if isinstance(value, dict):
            _check_numbers(value, path)
            continue
        most = MAX_LAYERS if name.endswith("layers") else MAX_EXPERTS if "experts" in name else None
        least = 1 if name == "num_hidden_layers" else 0
        if most is not None and isinstance(value, int | float) and not least <= value <= most:
            raise ConfigError(f"{str(path)!r}: {name} = {value!r:.40}; a model has {least} to {most}")


def _check_rope(raw: Mapping[str, Any], path: Path) -> None:
    """`rope_parameters` of today, `rope_scaling` and `rope_theta` of before: one meaning, or a refusal."""
    for config in (raw, raw.get("text_config")):
        if not isinstance(config, dict):
            continue
        new, old = config.get("rope_parameters"), config.get("rope_scaling")
        if new and old and new != old:
            raise ConfigError(f"{str(path)!r}: rope_scaling and rope_parameters differ; keep the right one")
        for rope in _rope_tables(new or old):
            kinds = {str(rope[name]) for name in ("rope_type", "type") if rope.get(name)}
            if len(kinds) > 1:
                named = ", ".join(sorted(kinds))
                raise ConfigError(f"{str(path)!r}: rope_type and type of the rotary positions differ ({named})")
            if kinds <= {"default"} and rope.get("factor") not in (None, 1):
                raise ConfigError(
                    f"{str(path)!r}: the rotary positions have factor = {rope['factor']!r:.40} and no "
                    "rope_type that uses it; name the type"
                )
            theta = rope.get("rope_theta", config.get("rope_theta"))
            if config.get("rope_theta") not in (None, theta):
                raise ConfigError(
                    f"{str(path)!r}: rope_theta = {config['rope_theta']!r:.40}, and {theta!r:.40} in "
                    "rope_parameters; keep the right one"
                )


def _rope_tables(rope: Any) -> Iterator[Mapping[str, Any]]:
    """The parameters of rotary positions, one table for all layers or one for each type of layer."""
    if isinstance(rope, dict):
        nested = [table for table in rope.values() if isinstance(table, dict)]
        yield from nested or [rope]


def _read_headers(folder: Path) -> tuple[dict[str, StoredTensor], list[str]]:
    """Return every tensor in the files of a model, and the contradictions of its index. ConfigError: no such
    files."""
    there = {path.name: path for path in sorted(folder.glob("*.safetensors"))}
    index = _weight_map(folder / INDEX)
    wanted = {SINGLE} if index is None else set(index.values())
    if absent := sorted(wanted - {name for name, path in there.items() if path.is_file()}):
        pickles = ", ".join(path.name for path in sorted(folder.glob("*.bin"))[:_SHOWN])
        beside = f" ({pickles}: pickles are not read; save the model again as safetensors)" if pickles else ""
        raise ConfigError(f"{str(folder)!r} lacks the weights {some(absent)}{beside}")
    problems = []
    if surplus := sorted(there.keys() - wanted):
        problems.append(f"{some(surplus)} {'is' if len(surplus) == 1 else 'are'} not in the index")
    stored: dict[str, StoredTensor] = {}
    for name in sorted(wanted):
        path = there[name]
        with refused(f"{str(path)!r} cannot be loaded"):
            path.open("rb").close()  # safetensors calls a file that this user cannot read missing
        with refused(f"{str(path)!r} cannot be loaded"), safe_open(path, "pt") as file:
            headers = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118  # it is no mapping
            here = [
                StoredTensor(path, key, tuple(header.get_shape()), header.get_dtype())
                for key, header in headers.items()
            ]
        if twice := [one.name for one in here if one.name in stored]:
            problems.append(f"{some(twice)} in {name} and in another file, too")
        if index is not None:
            listed = {tensor for tensor, file in index.items() if file == name}
            if lost := sorted(listed - {one.name for one in here}):
                problems.append(f"the index places {some(lost)} in {name}, which has no such tensor")
            if unlisted := sorted({one.name for one in here} - listed):
                problems.append(f"{name} has {some(unlisted)}, which the index does not place there")
        stored |= {one.name: one for one in here}
    return stored, problems


def _weight_map(path: Path) -> dict[str, str] | None:
    """The file of each tensor; None for a folder without an index."""
    if not path.is_file():
        return None
    found = read_json_object(path).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise ConfigError(f"{str(path)!r} has no weight_map")
    for file in found.values():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise ConfigError(f"{str(path)!r} names {file!r:.80}, which is no safetensors file beside it")
    return found


def _compare_tensors(model: Any, stored: Mapping[str, StoredTensor]) -> tuple[dict[str, StoredTensor], list[str]]:
    """Return the model's tensors, and those missing, surplus or of another shape."""
    conversions = get_model_conversion_mapping(model)
    without_memory = {name: torch.empty(one.shape, device="meta") for name, one in stored.items()}
    how: Any = LoadStateDictConfig  # undocumented in transformers, as the next lines
    load: Any = convert_and_load_state_dict_in_model
    options = how(
        device_map={"": "meta"},
        dtype=torch.float32,
        weight_mapping=conversions,
        ignore_mismatched_sizes=True,  # they are listed instead of raised
    )
    found, _ = load(model, without_memory, options)
    model._adjust_missing_and_unexpected_keys(found)
    model.tie_weights()
    tied: dict[str, str] = model.all_tied_weights_keys
    surplus = sorted(name for name in found.unexpected_keys if not _OLD_BUFFERS.search(name))
    absent = found.missing_keys - {name for name, *_ in found.mismatched_keys}
    missing = sorted(name for name in absent if tied.get(name, name) in absent)
    problems = []
    if missing:
        problems.append(f"config.json asks for {some(missing)}, which no file has")
    if surplus:
        problems.append(f"the files have {some(surplus)}, for which config.json has no place")
    for name, there, asked in sorted(found.mismatched_keys)[:_SHOWN]:
        problems.append(f"{name} is {list(there)}, config.json asks for {list(asked)}")
    for target, source in tied.items():
        head = stored.get(target)
        embedding = stored.get(source) or stored.get(source.removeprefix(f"{model.base_model_prefix}."))
        if head and embedding and not _are_equal(head, embedding):
            problems.append(f"config.json ties {target} to {source}, and the files have different values")
    return {name: one for name, one in stored.items() if not _OLD_BUFFERS.search(name)}, problems


def _are_equal(one: StoredTensor, other: StoredTensor, rows: int = 4096) -> bool:
    """Whether two tensors have the same type, shape and values; they are read part by part."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    with safe_open(one.file, "pt") as file, safe_open(other.file, "pt") as other_file:
        a, b = file.get_slice(one.name), other_file.get_slice(other.name)
        parts = (slice(first, first + rows) for first in range(0, one.shape[0], rows))
        return all(torch.equal(a[part], b[part]) for part in parts)


def _type_problems(raw: Mapping[str, Any], tensors: Iterable[StoredTensor]) -> list[str]:
    problems = []
    types = {one.dtype for one in tensors if one.shape}
    if odd := sorted(types - FLOATS.keys()):
        names = [one.name for one in tensors if one.dtype in odd and one.shape]
        problems.append(f"{some(names)} of type {', '.join(odd)}; weights are {', '.join(FLOATS)}")
    held = sorted(FLOATS.get(kind, kind) for kind in types)
    for name in ("dtype", "torch_dtype"):
        declared = str(raw.get(name) or "auto").removeprefix("torch.")
        if declared != "auto" and declared not in held:
            problems.append(f"{name} = {declared!r:.40} in config.json, the tensors are {', '.join(held)}")
    return problems


def _id_problems(folder: Path, rows: int) -> list[str]:
    """Special tokens that the embedding has no row for."""
    problems = []
    for file in ("config.json", "generation_config.json"):
        if not (folder / file).is_file():
            continue
        declared = read_json_object(folder / file)
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            value = declared.get(name)
            ids = value if isinstance(value, list) else [] if value is None else [value]
            if not all(isinstance(one, int) and 0 <= one < rows for one in ids):
                problems.append(f"{name} = {value!r:.60} in {file}, the vocabulary has {rows} tokens")
    return problems


def _architecture_problems(raw: Mapping[str, Any]) -> list[str]:
    """Servers choose the model by `architectures`, transformers by `model_type`."""
    problems = []
    for name in raw.get("architectures") or ():
        known = getattr(transformers, str(name), None)
        kind = getattr(getattr(known, "config_class", None), "model_type", None)
        if kind != raw.get("model_type"):
            what = f"of model_type {kind!r}" if kind else "unknown"
            problems.append(f"architectures has {name!r:.60}, {what}; model_type is {raw.get('model_type')!r}")
    return problems


def some(names: list[str]) -> str:
    """The first names of a list, and how many there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(name[:120] for name in names[:_SHOWN]) + more


@contextmanager
def refused(what: str, fix: str = "") -> Iterator[None]:
    """Convert the errors of a library that reads untrusted files into a ConfigError that begins with `what`.

    tokenizers raises `Exception` itself; a subclass that is not in `UNUSABLE` is our bug.
    """
    try:
        yield
    except Exception as error:
        if type(error) is ConfigError or not (isinstance(error, UNUSABLE) or type(error) is Exception):
            raise
        raise ConfigError(f"{what}: {first_line(error).rstrip('.')}{fix}") from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error, or its name; a line that ends in a colon includes the next."""
    if isinstance(error, OSError) and error.strerror:
        return format_error(error)
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return f"{type(error).__name__} {text}" if isinstance(error, KeyError) else text
