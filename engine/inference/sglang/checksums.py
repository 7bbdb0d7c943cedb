"""The checksums that a server must report after loading weights.

The server answers 200 to a partial checkpoint and to unknown tensor names, and a wrong shape kills it. So a
source is compared with the model's layout before it is sent, and every tensor's checksum after.

/weights_checker hashes each parameter of the server: on CPU the first 8 bytes of the SHA-256 of its bytes, in
the server's dtype. The server fuses q, k, v and gate, up (rows concatenated), and pads the rows of the
embedding and the head with zeros to a multiple of 64.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from rocstar.engine.inference.weights import Shapes, WeightSource

if TYPE_CHECKING:
    from torch import Tensor

FUSED = {".qkv_proj.": (".q_proj.", ".k_proj.", ".v_proj."), ".gate_up_proj.": (".gate_proj.", ".up_proj.")}
PADDED_ROWS = 64
PADDED = ("embed_tokens.weight", "lm_head.weight")
TIED = "lm_head.weight"
"""A tied model's checkpoints may hold it or not."""
EMBEDDING = "model.embed_tokens.weight"
DTYPES = ("float32", "bfloat16", "float16")


def check_layout(layout: Shapes, source: Shapes) -> None:
    """Raise ValueError with the first difference between a model's layout and the weights to load."""
    for name, shape in source.items():
        if name == TIED and name not in layout:
            continue
        if name not in layout:
            raise ValueError(f"the model has no tensor {name!r}; the server would skip it without a word")
        if layout[name] != shape:
            raise ValueError(f"{name} has shape {shape}, the model's is {layout[name]}; it would kill the server")
    missing = [name for name in layout if name not in source and name != TIED]
    if missing:
        raise ValueError(f"{len(missing)} tensors are missing, {missing[0]!r} first; their old values would stay")


def expected_checksums(source: WeightSource, names: Iterable[str], dtype: str) -> dict[str, str] | None:
    """Return the server's CPU checksums of `source` in `dtype`, by its parameter names.

    None if a parameter is not composed of the source's tensors in a known way (a quantised model).
    """
    passing = PassingChecksums(source.shapes(), names, dtype)
    passing.add_all(source)
    return passing.found()


class PassingChecksums:
    """Checksums of tensors that are seen once.

    Invariant: `found` depends on the tensors, not on their order. A part of a fused parameter that arrives
    early is kept until its turn; the model's own order keeps nothing.

    Args:
        have: shapes of all tensors that will be added.
        names: the server's parameters.
        dtype: of the server.
    """

    def __init__(self, have: Shapes, names: Iterable[str], dtype: str) -> None:
        parts = {name: list(_parts(name, have)) for name in names}
        self._is_known = all(parts.values())
        self._dtype = dtype
        self._hashes = {name: _ParameterHash(name, of) for name, of in parts.items()}
        self._by_part: dict[str, list[_ParameterHash]] = {}
        for name, of in parts.items():
            for part in of:
                self._by_part.setdefault(part, []).append(self._hashes[name])

    def add(self, name: str, tensor: Tensor) -> None:
        import torch

        if self._is_known and name in self._by_part:
            plain = tensor.detach().to("cpu", getattr(torch, self._dtype)).contiguous()
            for parameter in self._by_part[name]:
                parameter.add(name, plain)

    def add_all(self, source: WeightSource) -> None:
        """Add every tensor of `source` that a parameter is made of."""
        if self._is_known:
            for name in self._by_part:
                self.add(name, source.tensor(name))

    def found(self) -> dict[str, str] | None:
        """None as for `expected_checksums`; an incomplete parameter has the checksum "", which no server
        reports."""
        if not self._is_known:
            return None
        return {name: parameter.digest() for name, parameter in self._hashes.items()}


class _ParameterHash:
    """One parameter of the server, hashed part by part."""

    def __init__(self, name: str, parts: list[str]) -> None:
        self._name, self._left = name, list(reversed(parts))
        self._hasher = hashlib.sha256()
        self._early: dict[str, Tensor] = {}
        self._padding = 0

    def add(self, part: str, plain: Tensor) -> None:
        import torch

        self._early[part] = plain
        while self._left and self._left[-1] in self._early:
            turn = self._early.pop(self._left.pop())
            self._hasher.update(turn.reshape(-1).view(torch.uint8).numpy().data)
            if self._name.endswith(PADDED):
                self._padding = -turn.shape[0] % PADDED_ROWS * turn[0].numel() * turn.element_size()

    def digest(self) -> str:
        if self._left:
            return ""
        whole = self._hasher.copy()
        whole.update(bytes(self._padding))
        return whole.digest()[:8].hex()


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


def matching_dtype(source: WeightSource, reported: Mapping[str, str]) -> str | None:
    """Return the dtype in which `source` gives exactly the reported checksums; None if there is none.

    The smallest parameter selects the dtype, so that a model is hashed once, or not at all if the server's
    checksums cannot be predicted.
    """
    have = source.shapes()
    parts = {name: list(_parts(name, have)) for name in reported}
    if not parts or not all(parts.values()):
        return None
    smallest = min(parts, key=lambda name: sum(math.prod(have[part]) for part in parts[name]))
    for dtype in DTYPES:
        if expected_checksums(source, [smallest], dtype) != {smallest: reported[smallest]}:
            continue
        if expected_checksums(source, reported, dtype) == dict(reported):
            return dtype  # else another: zeros are the same bytes in two types
    return None


def differences(expected: Mapping[str, str], reported: Mapping[str, str]) -> list[str]:
    """The parameters whose checksum is not the expected one."""
    return sorted(n for n in expected.keys() | reported.keys() if expected.get(n) != reported.get(n))
