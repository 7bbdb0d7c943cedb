"""Shapes of published models by their hub name, so that a plan needs neither the hub nor a copy.

From the config.json of each repository; numbers that change no tensor's size are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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
