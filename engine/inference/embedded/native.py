"""The forward of a small Llama-like model in one call of C++: csrc/attend/forward.h.

Where a model is small, torch's sixty calls for a token cost more than their arithmetic, and each of them
takes the interpreter's lock anew while other threads want it. A token's bits depend on its own trajectory
alone: not on the rows that share the forward, nor on how many threads compute it.

Shapes: T flat tokens, N rows that decode, M positions, D head size, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rocstar.engine.inference.embedded.attention import Attention, Forward
from rocstar.engine.inference.embedded.kv import SlotPlan

try:
    from rocstar.engine.inference.embedded import _decode
except ImportError:  # not built: torch does the same, slower
    _decode = None  # type: ignore[assignment]

MOST_BYTES = 16 << 20
"""Bytes of weights: every thread reads all of them for each block of tokens, so they must fit its cache."""
TOKENS_PER_THREAD = 48
"""Fewer tokens are not worth another thread."""
STATIC_ROTATIONS = ("default", "linear", "llama3")
"""Those in which a token's angle depends on nothing but its position."""

_Place = tuple[dict[str, nn.Parameter | None], str]
"""A module's parameters and the name of one: the learner may replace the tensor."""


def fits(model: PreTrainedModel) -> bool:
    """Whether a plain model (decoder.py) is computed here: right everywhere, but not everywhere faster."""
    size = sum(parameter.nbytes for parameter in model.parameters())
    return (
        _decode is not None
        and _decode.FORWARD_IS_FAST
        and size <= MOST_BYTES
        and model.device.type == "cpu"
        and model.model.rotary_emb.rope_type in STATIC_ROTATIONS
    )


class NativeForward:
    """A `Forward` over the engine's own cache; any other attention, and weights elsewhere, are `other`'s.

    Invariant: of the same weights and the same tokens of one slot come the same bits, whatever else is in the
    forward.
    """

    def __init__(self, model: Any, other: Forward, *, spare_threads: int = 0) -> None:
        """spare_threads: of those that torch has here, for others who work meanwhile."""
        assert _decode is not None
        config, attn = model.config, model.model.layers[0].self_attn
        self._spare_threads = spare_threads
        self._other, self._rotary_emb = other, model.model.rotary_emb
        self._vocabulary: int = config.vocab_size
        self._forward = _decode.Forward(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            size=attn.head_dim,
            inner=config.intermediate_size,
            vocabulary=config.vocab_size,
            eps=config.rms_norm_eps,
            scale=attn.scaling,
        )
        self._places = list(_places(model))
        self._known: list[int] = []
        self._angles_MD = (torch.empty(0), torch.empty(0))
        """Cosines and sines of the model's own rotation, by position."""

    def __call__(self, ids_T: Tensor, positions_T: Tensor, attention: Attention, num_logits: int) -> Tensor:
        if (
            not isinstance(attention, SlotPlan)
            or not attention.kv.is_native
            or len(attention.slots_N) != num_logits
            or (weights := self._weights()) is None
        ):
            return self._other(ids_T, positions_T, attention, num_logits)
        kv = attention.kv
        if len(self._angles_MD[0]) < kv.tokens_per_slot:
            cosines, sines = self._rotary_emb(torch.empty(0), torch.arange(kv.tokens_per_slot)[None])
            self._angles_MD = cosines[0].contiguous(), sines[0].contiguous()
        cosines_MD, sines_MD = self._angles_MD
        logits_NV = torch.empty(num_logits, self._vocabulary)
        self._forward.run(
            weights,
            *(cosines_MD.data_ptr(), sines_MD.data_ptr(), *kv.addresses()),
            kv.tokens_per_slot,
            *(ids_T.data_ptr(), attention.slots_T.data_ptr(), positions_T.data_ptr(), logits_NV.data_ptr()),
            parts_of(attention, torch.get_num_threads() - self._spare_threads),
        )
        return logits_NV

    def _weights(self) -> list[int] | None:
        """Where the weights lie now; None where they are not as C++ reads them."""
        found = [own[name] for own, name in self._places]
        addresses = [0 if weight is None else weight.data_ptr() for weight in found]
        if addresses != self._known:
            if not all(weight is None or _is_readable(weight) for weight in found):
                return None
            self._known = addresses
        return addresses


def addresses_of(model: Any) -> Callable[[], list[int]]:
    """Return a function that gives the addresses of the weights at each call; 0 for weights that a plain
    model lacks."""
    places = list(_places(model))

    def addresses() -> list[int]:
        found = (own[name] for own, name in places)
        return [0 if weight is None else weight.data_ptr() for weight in found]

    return addresses


def _places(model: Any) -> Iterator[_Place]:
    """In the order in which csrc/attend/bindings.cpp takes them."""
    body = model.model
    absent: _Place = ({"": None}, "")

    def linear(module: nn.Module) -> Iterator[_Place]:
        yield module._parameters, "weight"
        yield module._parameters, "bias"

    def norm(module: nn.Module | None) -> _Place:
        return absent if module is None else (module._parameters, "weight")

    yield body.embed_tokens._parameters, "weight"
    for layer in body.layers:
        attn, mlp = layer.self_attn, layer.mlp
        yield norm(layer.input_layernorm)
        for projection in (attn.q_proj, attn.k_proj, attn.v_proj):
            yield from linear(projection)
        yield norm(getattr(attn, "q_norm", None))
        yield norm(getattr(attn, "k_norm", None))
        yield from linear(attn.o_proj)
        yield norm(layer.post_attention_layernorm)
        for projection in (mlp.gate_proj, mlp.up_proj, mlp.down_proj):
            yield from linear(projection)
    yield norm(body.norm)
    yield from linear(model.lm_head)


def _is_readable(weight: Tensor) -> bool:
    is_plain = type(weight) in (Tensor, nn.Parameter)  # no shard of one
    return is_plain and weight.is_contiguous() and weight.dtype == torch.float32 and weight.device.type == "cpu"


def parts_of(plan: SlotPlan, num_threads: int) -> list[tuple[int, int, int, int]]:
    """Each thread's tokens, those of a slot together: from where to where of the rows and their drafts, and of
    the extras behind them, which are in the rows' order."""
    num_rows, lengths = len(plan.slots_N), [extra.end - extra.start for extra in plan.extras]
    total = num_rows + sum(lengths)
    count = min(num_threads, total // TOKENS_PER_THREAD)
    if count < 2:
        return [(0, num_rows, num_rows, total)]
    counts = Counter(plan.slots_N) or dict.fromkeys((extra.slot for extra in plan.extras), 0)
    slots, place = list(counts), {slot: n for n, slot in enumerate(counts)}
    extras = np.zeros(len(slots), np.int64)
    extras[[place[extra.slot] for extra in plan.extras]] = lengths
    extra_at = num_rows + np.concatenate([[0], np.cumsum(extras)])
    row_at = np.concatenate([[0], np.cumsum(list(counts.values()))])
    ends = np.cumsum(extras) + row_at[1:]
    cuts: list[int] = [
        0,
        *(int(np.searchsorted(ends, total * part // count)) + 1 for part in range(1, count)),
        len(slots),
    ]
    pairs = zip(itertools.pairwise(row_at[cuts]), itertools.pairwise(extra_at[cuts]), strict=True)
    return [(int(a), int(b), int(c), int(d)) for (a, b), (c, d) in pairs]
