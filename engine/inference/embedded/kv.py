"""Key-value memory of the embedded engine: one slot of every layer per trajectory.

In float32 on a CPU decoding is csrc/attend/: each row costs its own length, its result depends on that row
alone, and it may have any slot. Keys then lie with a slot's tokens side by side. Elsewhere it is torch's
attention over rows padded to the longest, and the slots [0, N) are those that decode: a row moves by copying,
so that they are read without a gather. Prompts of models that torch computes take torch's attention, too.

Memory: keys and values of a layer are tensors of their own, [slots in use, ..., tokens of the longest row].
They grow one after the other, so that only one of them exists twice at a time.

Shapes: Y layers, S slots, K key-value heads, M tokens per slot, D head size, N active rows, X extra
tokens (prefill), E rows with extra tokens, H query heads, T = N + X flat tokens.
"""

from __future__ import annotations

import itertools
import os
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
TOKEN_GROWTH, SLOT_GROWTH = 8, 16
"""Growth adds at least 1/8 of the tokens and 1/16 of the slots, so that each token is copied a bounded number
of times. Both together, a tensor that exists twice and the last block stay below 1.3 times the need."""
KV_SHARE = 0.8
"""Share of a device's free memory; activations, logits and CUDA graphs use the rest."""
ROWS_PER_THREAD = 32
"""Fewer rows are not worth another thread."""
OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)


def kv_capacity(
    *, num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, free_bytes: int, share: float = KV_SHARE
) -> int:
    """Tokens of KV, of all slots together, that an engine may take of `free_bytes` of its device.

    n rows of at most m tokens run at once if n * m <= the result.
    """
    bytes_per_token = 2 * num_layers * num_kv_heads * head_dim * dtype.itemsize
    return int(free_bytes * share) // bytes_per_token


def free_bytes(device: torch.device) -> int:
    """Memory that this process can still take on a GPU; on a CPU half of the machine's memory.

    Blocks that torch's allocator holds without use count as free. The other half of a CPU's memory is for
    the learner and the sandbox.
    """
    if device.type == "cuda" and torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory of one layer's keys or values. Not empty: 0 * NaN behind a row's last token would be NaN."""
    if device.type == "cpu" and dtype == torch.float32:
        # numpy asks the kernel for huge pages: a decoding step reads all over this memory.
        return torch.from_numpy(np.zeros(shape, np.float32))
    return torch.zeros(shape, dtype=dtype, device=device)


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
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        capacity: int = 1 << 40,
        native: bool = True,
    ) -> None:
        """`capacity` bounds slots * tokens. `native` = False keeps to torch's attention."""
        self.capacity = capacity
        self.is_native = native and _decode is not None and dtype == torch.float32 and device.type == "cpu"
        self.dtype, self.device = dtype, device
        self._num_layers, self._kv_heads, self._size = num_layers, num_kv_heads, head_dim
        self.generation = 0
        """Changes with every new tensor of the cache."""
        self.give_back()

    def give_back(self) -> None:
        """Free the memory. The contents of the slots are lost."""
        self.generation += 1
        self.num_slots = self.tokens_per_slot = 0
        self._k = [self._zeros(0, 0, is_key=True)] * self._num_layers
        self._v = [self._zeros(0, 0, is_key=False)] * self._num_layers

    def _zeros(self, slots: int, tokens: int, *, is_key: bool) -> Tensor:
        """[S, K, M, D]; the storage of keys is [S, K, D, M] if decoding is native."""
        if is_key and self.is_native:
            return zeros((slots, self._kv_heads, self._size, tokens), self.dtype, self.device).transpose(2, 3)
        return zeros((slots, self._kv_heads, tokens, self._size), self.dtype, self.device)

    @property
    def held_bytes(self) -> int:
        return sum(x.nbytes for x in (*self._k, *self._v))

    def reserve(self, num_slots: int, num_tokens: int) -> None:
        """Make room for `num_tokens` tokens in each of `num_slots` slots, which are all that are in use.

        A dimension that grows gets more than it needs now; one that holds far more than that shrinks when the
        other one grows. If memory runs out, the cache is empty afterwards and the error is raised.
        """
        slots, tokens = self.num_slots, self.tokens_per_slot
        if num_slots <= slots and num_tokens <= tokens:
            return
        if num_tokens > tokens:
            tokens = max(num_tokens, tokens + tokens // TOKEN_GROWTH)
        else:
            tokens = min(tokens, num_tokens + num_tokens // TOKEN_GROWTH)
        if num_slots > slots:
            slots = max(num_slots, slots + slots // SLOT_GROWTH)
        else:
            slots = min(slots, num_slots + num_slots // SLOT_GROWTH)
        slots = max(num_slots, min(slots, self.capacity // num_tokens))
        tokens = max(num_tokens, min(tokens, self.capacity // slots))
        try:
            self._resize(slots, -(-tokens // BLOCK) * BLOCK)
        except OUT_OF_MEMORY:
            self.give_back()
            raise

    def _resize(self, slots: int, tokens: int) -> None:
        self.generation += 1
        kept_slots, kept_tokens = min(slots, self.num_slots), min(tokens, self.tokens_per_slot)
        for layers, is_key in ((self._k, True), (self._v, False)):
            for layer, old in enumerate(layers):
                new = self._zeros(slots, tokens, is_key=is_key)
                new[:kept_slots, :, :kept_tokens] = old[:kept_slots, :, :kept_tokens]
                layers[layer] = new
                del old  # else it lives on while the next layer grows
        self.num_slots, self.tokens_per_slot = slots, tokens

    def swap(self, a: int, b: int, num_tokens: int) -> None:
        """Exchange two rows, `num_tokens` deep. Slots without tokens may lie beyond the cache's memory."""
        if not num_tokens:
            return
        for x in (*self._k, *self._v):
            held = x[a, :, :num_tokens].clone()
            x[a, :, :num_tokens] = x[b, :, :num_tokens]
            x[b, :, :num_tokens] = held

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        if not num_tokens:
            return
        for x in (*self._k, *self._v):
            x[target, :, :num_tokens] = x[source, :, :num_tokens]

    def addresses(self) -> tuple[list[int], list[int]]:
        """Addresses of each layer's keys and values, for csrc/attend/."""
        return [x.data_ptr() for x in self._k], [x.data_ptr() for x in self._v]

    def plan(
        self, positions_N: Sequence[int], extras: Sequence[Extra], slots_N: Sequence[int] | None = None
    ) -> tuple[Tensor, SlotPlan]:
        """Positions_T of the flat tokens (one per active row, then the extras in order) and the plan.

        slots_N: of the rows; None: [0, N), and nothing else where the cache is not native. Slots and tokens
        beyond the present size are added; none is taken away, because other slots may be in use.
        """
        rows_N = range(len(positions_N)) if slots_N is None else slots_N
        num_slots = max([*rows_N, *(e.slot for e in extras)]) + 1
        num_tokens = max([*positions_N, *(e.end - 1 for e in extras)]) + 1
        self.reserve(max(num_slots, self.num_slots), max(num_tokens, self.tokens_per_slot))
        last_N = torch.tensor(positions_N, dtype=torch.int64)
        parts = [last_N, *(torch.arange(e.start, e.end) for e in extras)]
        positions_T = torch.cat(parts).to(self.device) if extras else last_N.to(self.device)
        return positions_T, SlotPlan(self, positions_T, max(positions_N, default=-1) + 1, rows_N, extras)


class SlotPlan:
    """Attention over the slots for one forward; masks are made once, when a layer asks, and used by all."""

    def __init__(
        self, kv: SlotKv, positions_T: Tensor, context: int, slots_N: Sequence[int], extras: Sequence[Extra]
    ) -> None:
        """context: tokens of the longest row, its last one among them."""
        self.kv, self.context, self.slots_N, self.extras = kv, context, slots_N, extras
        num_rows = len(slots_N)
        self._positions_N, self._positions_X = positions_T[:num_rows], positions_T[num_rows:]

    @cached_property
    def slots_T(self) -> Tensor:
        """The slot of every flat token."""
        slots = [*self.slots_N, *(extra.slot for extra in self.extras)]
        counts = [*([1] * len(self.slots_N)), *(extra.end - extra.start for extra in self.extras)]
        slots_T = torch.tensor(slots)
        if self.extras:
            slots_T = slots_T.repeat_interleave(torch.tensor(counts))
        return slots_T.to(self.kv.device)

    @cached_property
    def _parts(self) -> list[tuple[int, int]]:
        """The rows of each thread; those of a slot, a token and its drafts, together and in order."""
        slots_N, n = self.slots_N, len(self.slots_N)
        parts = min(torch.get_num_threads(), n // ROWS_PER_THREAD) or 1
        cuts = [n * part // parts for part in range(1, parts)]
        for k, cut in enumerate(cuts):
            cuts[k] = next(at for at in range(cut, n + 1) if at == n or slots_N[at] != slots_N[at - 1])
        return list(itertools.pairwise([0, *cuts, n]))

    @cached_property
    def _padded(self) -> list[_PaddedExtras]:
        lengths = [extra.end - extra.start for extra in self.extras]
        offsets = np.cumsum([0, *lengths]).tolist()
        return [
            _PaddedExtras(
                [self.extras[x] for x in members], [offsets[x] for x in members], self.kv.device, self.kv.dtype
            )
            for members in buckets(lengths)
        ]

    @cached_property
    def _mask_N(self) -> Tensor:
        column = torch.arange(self.context, device=self.kv.device)
        return _additive(column <= self._positions_N[:, None], self.kv.dtype)

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
            keys[:n, :, : self.context],
            values[:n, :, : self.context],
            attn_mask=self._mask_N[:, None, None],
            scale=scale,
        ).reshape(n, heads, size)

    def _decode_native(self, keys: Tensor, values: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """The same in csrc/attend/attend.cpp, which writes the new keys and values too."""
        q, k, v = (x if x[0].is_contiguous() else x.contiguous() for x in (q, k, v))
        out = torch.empty(q.shape)

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

        mine, *others = self._parts
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
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, float("-inf"))
