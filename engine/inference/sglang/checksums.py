"""What a server is to serve, and the checksums it must then report.

The server answers 200 to a partial checkpoint and to unknown tensor names, and a wrong shape kills it. So a
source is compared with the model's layout before it is sent, and every tensor's checksum after.

/weights_checker hashes each parameter of the server: on CPU the first 8 bytes of the SHA-256 of its bytes, in
the server's dtype. The server fuses q, k, v and gate, up (rows behind one another), and pads the rows of the
embedding and the head with zeros to a multiple of 64.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from rocstar.engine.inference.weights import Shapes, WeightSource

if TYPE_CHECKING:
    from torch import Tensor

FUSED = {
    ".qkv_proj.": (".q_proj.", ".k_proj.", ".v_proj."),
    ".gate_up_proj.": (".gate_proj.", ".up_proj."),
}
PADDED_ROWS = 64
PADDED = ("embed_tokens.weight", "lm_head.weight")
TIED = "lm_head.weight"
"""A tied model's checkpoints may hold it or not."""
EMBEDDING = "model.embed_tokens.weight"
DTYPES = ("float32", "bfloat16", "float16")


def check_layout(layout: Shapes, source: Shapes) -> None:
    """ValueError naming the first difference between a model and what is to be loaded into it."""
    for name, shape in source.items():
        if name == TIED and name not in layout:
            continue
        if name not in layout:
            raise ValueError(f"the model has no tensor {name!r}; the server would skip it without a word")
        if layout[name] != shape:
            raise ValueError(
                f"{name} has shape {shape}, the model's is {layout[name]}; it would kill the server"
            )
    missing = [name for name in layout if name not in source and name != TIED]
    if missing:
        raise ValueError(
            f"{len(missing)} tensors are missing, {missing[0]!r} first; their old values would stay"
        )


def expected_checksums(source: WeightSource, names: Iterable[str], dtype: str) -> dict[str, str] | None:
    """What the server's CPU hash gives for `source` in `dtype`, by its parameter names.

    None if a parameter is not made of the source's tensors in a way known here (a quantised model, say).
    """
    have = source.shapes()
    found = {}
    for name in names:
        parts = list(_parts(name, have))
        if not parts:
            return None
        found[name] = _digest(name, [source.tensor(part) for part in parts], dtype)
    return found


def _parts(name: str, have: Shapes) -> Iterator[str]:
    if name in have:
        yield name
        return
    if name == TIED and EMBEDDING in have:
        yield EMBEDDING
    for fused, parts in FUSED.items():
        if fused in name:
            names = [name.replace(fused, part) for part in parts]
            if all(part in have for part in names):
                yield from names


def _digest(name: str, tensors: Iterable[Tensor], dtype: str) -> str:
    import torch

    hasher = hashlib.sha256()
    rows = width = 0
    for tensor in tensors:
        plain = tensor.detach().to("cpu", getattr(torch, dtype)).contiguous()
        hasher.update(plain.reshape(-1).view(torch.uint8).numpy().data)
        rows, width = plain.shape[0], plain[0].numel() * plain.element_size()
    if name.endswith(PADDED) and rows % PADDED_ROWS:
        hasher.update(bytes((PADDED_ROWS - rows % PADDED_ROWS) * width))
    return hasher.digest()[:8].hex()


def matching_dtype(
    source: WeightSource, reported: Mapping[str, str], dtypes: Iterable[str] = DTYPES
) -> str | None:
    """The dtype in which `source` gives exactly the reported checksums; None if there is none."""
    for dtype in dtypes:
        if expected_checksums(source, reported, dtype) == dict(reported):
            return dtype
    return None


def differences(expected: Mapping[str, str], reported: Mapping[str, str]) -> list[str]:
    """The parameters whose checksum is not the expected one."""
    return sorted(n for n in expected.keys() | reported.keys() if expected.get(n) != reported.get(n))
