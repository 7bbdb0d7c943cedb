"""A tiny Qwen3 whose weights are arithmetic: the same bits on every machine, for tests and recordings.

Random generators of torch change between versions and machines; recorded checksums of such weights would not
be worth keeping. Its logits are peaked enough for sampling to look like a model's.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 128, 4, 2, 16, 2
VOCAB = 500
"""No multiple of 64, so that the server pads the embedding."""
EOS = 2
CONTEXT = 4096


def write_tiny_model(folder: Path, *, seed: int, scale: float = 0.8) -> Path:
    """A Hugging Face folder: config, fp32 weights, and a tokenizer of single bytes for the server's start."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_config(), indent=1), encoding="utf-8")
    tensors = {
        name: np.ones(shape, np.float32) if name.endswith("norm.weight") else _values(shape, seed, k, scale)
        for k, (name, shape) in enumerate(tiny_shapes().items())
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    """One token per byte and three control tokens: what the server detokenizes with, nothing more."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: k for k, text in enumerate([*special, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": special[EOS], "pad_token": special[EOS]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def tiny_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {
            f"{at}input_layernorm.weight": (HIDDEN,),
            f"{at}self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"{at}self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{at}self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{at}self_attn.q_norm.weight": (HEAD_DIM,),
            f"{at}self_attn.k_norm.weight": (HEAD_DIM,),
            f"{at}self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"{at}post_attention_layernorm.weight": (HIDDEN,),
            f"{at}mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{at}mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{at}mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        }
    return shapes | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}


def _values(shape: tuple[int, ...], seed: int, number: int, scale: float) -> npt.NDArray[np.float32]:
    """16 bits of a multiplicative hash of the index each, spread over [-scale, scale): exact in fp32."""
    index = np.arange(int(np.prod(shape)), dtype=np.uint64)
    mixed = (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed * 1009 + number * 7919)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (mixed >> np.uint64(48)).astype(np.float32)
    return ((bits / 32768.0 - 1.0) * np.float32(scale)).astype(np.float32).reshape(shape)


def _config() -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "bos_token_id": 1,
        "eos_token_id": EOS,
        "pad_token_id": EOS,
        "dtype": "float32",
        "use_sliding_window": False,
        "sliding_window": None,
    }
