"""A small Llama in a GGUF file, as llama.cpp writes it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..needs import modules

TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefgh", "ab", "Ġ", *"12345"]
WIDTH, HALF, INNER = 64, 32, 96
SHAPES = {
    "attn_norm": (WIDTH,),
    "ffn_norm": (WIDTH,),
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (HALF, WIDTH),
    "attn_v": (HALF, WIDTH),
    "attn_output": (WIDTH, WIDTH),
    "ffn_gate": (INNER, WIDTH),
    "ffn_up": (INNER, WIDTH),
    "ffn_down": (WIDTH, INNER),
}


def write_gguf(
    path: Path,
    *changes: Callable[[Any], object],
    arch: str = "llama",
    without: str = "",
    is_quantized: bool = False,
    **values: int,
) -> Path:
    """Write norms of ones and random matrices, in Q8_0 if it `is_quantized`.

    `changes` are made to the writer before its tensors, `values` replace those of keys.
    """
    gguf, np = modules("gguf", "numpy")
    keys = {
        "context_length": 128,
        "embedding_length": WIDTH,
        "block_count": 1,
        "feed_forward_length": INNER,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "rope.dimension_count": 32,
        "vocab_size": len(TOKENS),
    } | values
    writer = gguf.GGUFWriter(path, arch)
    for name, value in keys.items():
        writer.add_uint32(f"{arch}.{name}", value)
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32(f"{arch}.rope.freq_base", 10_000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (len(TOKENS), WIDTH), "output_norm": (WIDTH,)}
    for layer in range(keys["block_count"]):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in SHAPES.items()}
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        if name == without:
            continue
        kind, weight = None, np.ones(shape, dtype=np.float32)
        if len(shape) > 1:
            weight = rng.normal(0, 0.1, shape).astype(np.float32)
            if is_quantized:
                kind = gguf.GGMLQuantizationType.Q8_0
                weight = gguf.quants.quantize(weight, kind)
        writer.add_tensor(f"{name}.weight", weight, raw_dtype=kind)
    for change in changes:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
