"""Write a checkpoint as one GGUF file, the inverse of import_gguf.py.

Matrices are bfloat16, vectors float32; nothing is quantised. Names come from llama.cpp's own package `gguf`.
A model that GGUF cannot express is refused: with an unnamed architecture or pre-tokenizer it would load and
generate nonsense.
"""

import importlib.util
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from rocstar.sandbox.extras import pip_command
from rocstar.train.learner.claims import StoredTensor
from rocstar.train.learner.export.source import ExportSource
from rocstar.train.learner.model_io import check_finite, is_finite
from rocstar.train.recipe.errors import ConfigError

ARCHITECTURES: Final = {"llama": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3"}
"""model_type of the configuration: the name of the architecture in `gguf.MODEL_ARCH`."""

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS: Final = {_CONTRACTIONS + _REST: "qwen2", _CONTRACTIONS + "{1,3}" + _REST: "llama-bpe"}
"""How a tokenizer cuts text before it merges bytes: its regular expression, and what llama.cpp calls it."""
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Kinds of tokens in a GGUF file."""


def check_gguf(source: ExportSource) -> None:
    """ConfigError, with the reason, for a checkpoint of which there is no GGUF file."""
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(f"writing GGUF needs the package gguf; run: {pip_command('gguf')}")
    config, kind = source.config, source.config.get("model_type")
    if kind not in ARCHITECTURES:
        raise ConfigError(
            f"model_type {kind!r} cannot be written as GGUF here, only {', '.join(ARCHITECTURES)}; take --format hf"
        )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ConfigError("scaled rotary positions are not written as GGUF here; take --format hf")
    if kind == "llama" and (config.get("attention_bias") or config.get("mlp_bias")):
        raise ConfigError("a Llama with biases is not written as GGUF here; take --format hf")
    if config.get("use_sliding_window"):
        raise ConfigError("a sliding window is not written as GGUF here; take --format hf")
    if source.tokenizer.get("model", {}).get("type") != "BPE" or source.tokenizer.get("normalizer") not in NORMALIZERS:
        raise ConfigError("only a byte-level BPE tokenizer is written as GGUF here; take --format hf")
    pre_tokenizer_name(source.tokenizer)


NORMALIZERS: Final = (None, {"type": "NFC"})


def pre_tokenizer_name(tokenizer: Mapping[str, Any]) -> str:
    """Return llama.cpp's name of the tokenizer's pre-tokenizer. ConfigError if it has none."""
    pre_tokenizer = tokenizer.get("pre_tokenizer") or {}
    *before, last = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    if last.get("type") == "ByteLevel" and not last.get("add_prefix_space"):
        if not before and last.get("use_regex"):
            return "gpt-2"
        if [one.get("type") for one in before] == ["Digits"] and last.get("use_regex"):
            return "smollm"
        if [one.get("type") for one in before] == ["Split"] and not last.get("use_regex"):
            expression = before[0].get("pattern", {}).get("Regex")
            if expression in SPLITS:
                return SPLITS[expression]
    raise ConfigError(
        "the tokenizer cuts text in a way that GGUF has no name for (the tokenizers of models from nothing "
        "do); whoever read the file would cut it otherwise, so take --format hf"
    )


def write_gguf(source: ExportSource, path: Path) -> int:
    """Write the file; how many tensors it has. One of them is in memory at a time.

    Raises:
        ConfigError: a weight has no name in GGUF.
        OSError: the file cannot be written.
    """
    import gguf
    import numpy as np

    unwritten = "lm_head.weight" if source.config.get("tie_word_embeddings") else None
    written = [one for one in source.checked.tensors.values() if one.name != unwritten]
    stored, num_layers = sorted(written, key=attrgetter("file", "name")), int(source.config["num_hidden_layers"])
    names = gguf_names([one.name for one in stored], source.config["model_type"], num_layers)
    arch = gguf.MODEL_ARCH[ARCHITECTURES[source.config["model_type"]]]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    try:
        _write_facts(source, writer, num_layers)
        _write_tokenizer(source, writer)
        for one in stored:
            matrix = len(one.shape) > 1
            kind = gguf.GGMLQuantizationType.BF16 if matrix else gguf.GGMLQuantizationType.F32
            dtype: Any = np.dtype(np.uint16 if matrix else np.float32)
            size = (2 if matrix else 4) * math.prod(one.shape)
            writer.add_tensor_info(names[one.name], list(one.shape), dtype, size, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for data in _tensors(source, stored):
            writer.write_tensor_data(data)
    finally:
        writer.close()
    return len(stored)


def gguf_names(names: Iterable[str], model_type: str, num_layers: int) -> dict[str, str]:
    """The name in GGUF of each weight. ConfigError where one has none."""
    import gguf

    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH[ARCHITECTURES[model_type]], num_layers)
    found = {}
    for name in names:
        known = table.get_name(name, try_suffixes=(".weight", ".bias"))
        if known is None:
            raise ConfigError(f"the weight {name!r} has no name in GGUF; take --format hf")
        found[name] = known
    return found


def _write_facts(source: ExportSource, writer: Any, num_layers: int) -> None:
    config = source.config
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    width = int(config.get("head_dim") or hidden // heads)
    rope = config.get("rope_parameters") or {}
    writer.add_name(source.name)
    writer.add_context_length(int(config["max_position_embeddings"]))
    writer.add_embedding_length(hidden)
    writer.add_block_count(num_layers)
    writer.add_feed_forward_length(int(config["intermediate_size"]))
    writer.add_head_count(heads)
    writer.add_head_count_kv(int(config.get("num_key_value_heads") or heads))
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0))
    writer.add_layer_norm_rms_eps(float(config["rms_norm_eps"]))
    writer.add_vocab_size(int(config["vocab_size"]))
    writer.add_file_type(32)  # mostly bfloat16


def _write_tokenizer(source: ExportSource, writer: Any) -> None:
    tokenizer = source.tokenizer
    texts = {number: token for token, number in tokenizer["model"]["vocab"].items()}
    kinds = dict.fromkeys(texts, NORMAL)
    for added in tokenizer.get("added_tokens", []):
        texts[added["id"]] = added["content"]
        kinds[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    rows = range(int(source.config["vocab_size"]))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer_name(tokenizer))
    writer.add_token_list([texts.get(number, f"[PAD{number}]") for number in rows])
    writer.add_token_types([kinds.get(number, UNUSED) for number in rows])
    merges = tokenizer["model"].get("merges", [])
    writer.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in merges])
    numbers = {text: number for number, text in texts.items()}
    for name in ("bos", "eos", "pad"):
        token = source.tokenizer_config.get(f"{name}_token")  # an object in some files
        text = str(token.get("content", "")) if isinstance(token, Mapping) else str(token or "")
        if (number := numbers.get(text)) is not None:
            getattr(writer, f"add_{name}_token_id")(number)
    writer.add_add_bos_token(False)
    if (template := source.template) is not None:
        writer.add_chat_template(template)


def _tensors(source: ExportSource, stored: Iterable[StoredTensor]) -> Iterator[Any]:
    """Yield each weight as numpy: a matrix as bits of bfloat16, a vector as float32.

    Raises:
        ConfigError: it holds NaN or infinity.
    """
    import torch
    from safetensors import safe_open

    for file, of_file in itertools.groupby(stored, key=attrgetter("file")):
        with safe_open(file, "pt") as read:
            for name in [one.name for one in of_file]:
                weight = read.get_tensor(name).to(torch.bfloat16)
                check_finite(str(source.folder), [] if is_finite(weight) else [name])
                if source.config["model_type"] == "llama":
                    weight = _interleaved(name, weight, source.config)
                if weight.dim() > 1:
                    yield weight.contiguous().view(torch.uint16).numpy()
                else:
                    yield weight.to(torch.float32).numpy()


def _interleaved(name: str, weight: Any, config: Mapping[str, Any]) -> Any:
    """A Llama's query and key rows in the order in which llama.cpp rotates them: pairs side by side."""
    heads = {
        "q_proj.weight": config["num_attention_heads"],
        "k_proj.weight": config.get("num_key_value_heads") or config["num_attention_heads"],
    }
    for ending, count in heads.items():
        if name.endswith(ending):
            parts = weight.reshape(int(count), 2, -1, *weight.shape[1:])
            return parts.swapaxes(1, 2).reshape(weight.shape)
    return weight
