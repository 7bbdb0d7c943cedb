"""Key-value memory of the embedded engine: one row of every layer per trajectory.

In float32 on a CPU decoding is csrc/attend/: each row costs its own length, its result depends on that row
alone, and it may have any slot. Keys then lie with a slot's tokens side by side. Elsewhere it is torch's
attention over rows padded to the longest, and the slots [0, N) are those that decode: a row moves by copying,
so that they are read without a gather. Prompts of models that torch computes take torch's attention, too.

Shapes: Y layers, S slots, K key-value heads, M tokens per slot, D head size, N active rows, X extra
tokens (prefill), E rows with extra tokens, H query heads, T = N + X flat tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rocstar.engine.inference.embedded.attention import buckets, grouped_attention

try:
    from rocstar.engine.inference.embedded import _decode
except ImportError:  # not built: torch's attention does the same, slower
    _decode = None  # type: ignore[assignment]

BLOCK = 64
"""Tokens by which slots grow, so that their rows stay aligned."""
ROWS_PER_THREAD = 32
"""Fewer rows are not worth another thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """Tokens [start, end) of the row in `slot` that enter the cache before its last token."""

    slot: int
    start: int
    end: int


class SlotKv:
    """The cache, and the attention of one mixed prefill-and-decode forward over it.

    Invariant: after a forward planned with positions_N, slot n holds the keys of tokens
    [0, positions_N[n]], and its token attended to exactly those.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_slots: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        max_tokens: int = 1 << 30,
        native: bool = True,
    ) -> None:
        """No slot ever holds more than `max_tokens`. `native` = False keeps to torch's attention."""
        self.num_slots = num_slots
        self._max_tokens = max_tokens
        self.is_native = native and _decode is not None and dtype == torch.float32 and device.type == "cpu"
        self._shape = (num_layers, num_slots, num_kv_heads, 0, head_dim)
        self._dtype, self.device = dtype, device
        self._k, self._v = self._allocate(0)

    def _allocate(self, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Zeroed keys and values_YSKMD; the keys' storage is [Y, S, K, D, M] if decoding is native."""
        layers, slots, kv_heads, _, size = self._shape
        shape = (layers, slots, kv_heads, num_tokens, size)
        shape_k = (layers, slots, kv_heads, size, num_tokens) if self.is_native else shape
        if self.device.type == "cpu" and self._dtype == torch.float32:
            # numpy asks the kernel for huge pages: a decoding step reads all over this memory.
            k, v = (torch.from_numpy(np.zeros(x, np.float32)) for x in (shape_k, shape))
        else:
            k, v = (torch.zeros(x, dtype=self._dtype, device=self.device) for x in (shape_k, shape))
        return k.transpose(3, 4) if self.is_native else k, v

    @property
    def tokens_per_slot(self) -> int:
        return self._k.shape[3]

    def reserve(self, num_tokens: int) -> None:
        """Make room for `num_tokens` in every slot, or for twice as many as now; contents are kept."""
        held = self.tokens_per_slot
        if num_tokens <= held:
            return
        assert num_tokens <= self._max_tokens, "the engine refuses longer requests"
        wanted = max(num_tokens, min(held * 2, self._max_tokens))
        grown = self._allocate(-(-wanted // BLOCK) * BLOCK)
        for old, new in zip((self._k, self._v), grown, strict=True):
            new[:, :, :, :held] = old
        self._k, self._v = grown

    def swap(self, a: int, b: int, num_tokens: int) -> None:
        """Exchange two rows, `num_tokens` deep."""
        for x in (self._k, self._v):
            held = x[:, a, :, :num_tokens].clone()
            x[:, a, :, :num_tokens] = x[:, b, :, :num_tokens]
            x[:, b, :, :num_tokens] = held

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        for x in (self._k, self._v):
            x[:, target, :, :num_tokens] = x[:, source, :, :num_tokens]

    def addresses(self) -> tuple[int, int]:
        """Of keys and values, for csrc/attend/."""
        return self._k.data_ptr(), self._v.data_ptr()

    def plan(
        self, positions_N: Sequence[int], extras: Sequence[Extra], slots_N: Sequence[int] | None = None
    ) -> tuple[Tensor, SlotPlan]:
        """Positions_T of the flat tokens (one per active row, then the extras in order) and the plan.

        slots_N: of the rows; None: [0, N), and nothing else where the cache is not native.
        """
        self.reserve(max([*positions_N, *(e.end - 1 for e in extras)]) + 1)
        last_N = torch.tensor(positions_N, dtype=torch.int64)
        parts = [last_N, *(torch.arange(e.start, e.end) for e in extras)]
        positions_T = torch.cat(parts).to(self.device) if extras else last_N.to(self.device)
        rows_N = range(len(positions_N)) if slots_N is None else slots_N
        return positions_T, SlotPlan(self, positions_T, max(positions_N, default=-1) + 1, rows_N, extras)


class SlotPlan:
    """Attention over the slots for one forward; masks are made once, when a layer asks, and used by all."""

    def __init__(
        self, kv: SlotKv, positions_T: Tensor, context: int, slots_N: Sequence[int], extras: Sequence[Extra]
    ) -> None:
        """context: tokens of the longest row, its last one among them."""
        self.kv, self._context, self.slots_N, self.extras = kv, context, slots_N, extras
        num_rows = len(slots_N)
        self._positions_N, self._positions_X = positions_T[:num_rows], positions_T[num_rows:]

    @cached_property
    def slots_T(self) -> Tensor:
        """Of every flat token."""
        slots = [*self.slots_N, *(extra.slot for extra in self.extras)]
        counts = [*([1] * len(self.slots_N)), *(extra.end - extra.start for extra in self.extras)]
        slots_T = torch.tensor(slots)
        if self.extras:
            slots_T = slots_T.repeat_interleave(torch.tensor(counts))
        return slots_T.to(self.kv.device)

    @cached_property
    def _padded(self) -> list[_PaddedExtras]:
        return _PaddedExtras.in_buckets(self.extras, self.kv)

    @cached_property
    def _mask_N(self) -> Tensor:
        column = torch.arange(self._context, device=self.kv.device)
        return _additive(column <= self._positions_N[:, None], self.kv._k.dtype)

    def attend(self, layer: int, q_HTD: Tensor, k_KTD: Tensor, v_KTD: Tensor, scale: float) -> Tensor:
        keys, values, n = self.kv._k[layer], self.kv._v[layer], len(self.slots_N)
        q_THD, k_TKD, v_TKD = (x.transpose(0, 1) for x in (q_HTD, k_KTD, v_KTD))
        decode = self._decode_native if self.kv.is_native else self._decode
        if not self.extras:
            return decode(keys, values, q_THD, k_TKD, v_TKD, scale)
        # Before the last tokens: those of the same row attend to them.
        slots_X = self.slots_T[n:]
        keys[slots_X, :, self._positions_X] = k_TKD[n:]
        values[slots_X, :, self._positions_X] = v_TKD[n:]
        out_THD = torch.empty(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
        if n:
            out_THD[:n] = decode(keys, values, q_THD[:n], k_TKD[:n], v_TKD[:n], scale)
        for padded in self._padded:
            out_THD[n + padded.tokens] = padded.attend(q_THD[n:], keys, values, scale)
        return out_THD

    def _decode(self, keys: Tensor, values: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Every row's last token against its slot, padded to the longest."""
        n, heads, size = q.shape
        keys[self.slots_T[:n], :, self._positions_N] = k
        values[self.slots_T[:n], :, self._positions_N] = v
        # The query heads that share a key head become the rows of one query: no repeated keys.
        return F.scaled_dot_product_attention(
            q.reshape(n, k.shape[1], -1, size),
            keys[:n, :, : self._context],
            values[:n, :, : self._context],
            attn_mask=self._mask_N[:, None, None],
            scale=scale,
        ).reshape(n, heads, size)

    def _decode_native(
        self, keys: Tensor, values: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float
    ) -> Tensor:
        """The same in csrc/attend/attend.cpp, which writes the new keys and values too."""
        q, k, v = (x if x[0].is_contiguous() else x.contiguous() for x in (q, k, v))
        out, n = torch.empty(q.shape), len(q)

        def attend(begin: int, end: int) -> None:
            _decode.attend(
                *(q.data_ptr(), k.data_ptr(), v.data_ptr()),
                *(q.stride(0), k.stride(0), v.stride(0)),
                *(keys.data_ptr(), values.data_ptr(), out.data_ptr()),
                *(self.slots_T.data_ptr(), self._positions_N.data_ptr()),
                *(q.shape[1], k.shape[1], q.shape[2], keys.shape[2]),
                scale,
                begin,
                end,
            )

        parts = min(torch.get_num_threads(), n // ROWS_PER_THREAD) or 1
        mine, *others = itertools.pairwise(n * part // parts for part in range(parts + 1))
        running = [_pool().submit(attend, *other) for other in others]
        attend(*mine)
        for part in running:
            part.result()
        return out


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="attend")


class _PaddedExtras:
    """Prefill rows of similar length, padded to the longest. `tokens`: their places among the extras."""

    @classmethod
    def in_buckets(cls, extras: Sequence[Extra], kv: SlotKv) -> list[_PaddedExtras]:
        lengths = [e.end - e.start for e in extras]
        offsets = np.cumsum([0, *lengths]).tolist()
        return [
            cls([extras[e] for e in members], [offsets[e] for e in members], kv.device, kv._k.dtype)
            for members in buckets(lengths)
        ]

    def __init__(
        self, extras: Sequence[Extra], offsets: Sequence[int], device: torch.device, dtype: torch.dtype
    ) -> None:
        # Places are known on the host: a GPU asked for those that are real would be waited for.
        lengths = torch.tensor([e.end - e.start for e in extras])
        starts = torch.tensor([e.start for e in extras])
        column = torch.arange(int(lengths.max()))
        self._slots = torch.tensor([e.slot for e in extras], device=device)
        self._context = max(e.end for e in extras)
        # A padded place repeats its row's last token.
        place = torch.minimum(column, lengths[:, None] - 1)
        gather = torch.tensor(offsets)[:, None] + place
        real = (column < lengths[:, None]).flatten().nonzero()[:, 0]
        self._gather, self._real = gather.to(device), real.to(device)
        self.tokens = gather.flatten()[real].to(device)
        position = (starts[:, None] + place).to(device)
        self._mask = _additive(torch.arange(self._context, device=device) <= position[:, :, None], dtype)

    def attend(self, q_XHD: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Out of `tokens`, in their order."""
        k = keys[self._slots, :, : self._context].contiguous()
        v = values[self._slots, :, : self._context]
        q = q_XHD[self._gather].transpose(1, 2)
        out = grouped_attention(q, k, v, self._mask[:, None], scale)
        return out.transpose(1, 2).flatten(0, 1)[self._real]


def _additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(
        ~allowed, float("-inf")
    )
