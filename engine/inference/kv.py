"""Key-value memory of the embedded engine: one row of every layer per trajectory.

Rows [0, num_active) are being decoded; rows above hold trajectories that wait for a tool. A row moves by
copying, so that the active ones stay dense and decoding reads them without a gather.

Shapes: Y layers, S slots, K key-value heads, M tokens per slot, D head size, N active rows, X extra
tokens (prefill), E rows with extra tokens, H query heads, T = N + X flat tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


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
    ) -> None:
        shape = (num_layers, num_slots, num_kv_heads, 0, head_dim)
        self._k = torch.zeros(shape, dtype=dtype, device=device)
        self._v = torch.zeros(shape, dtype=dtype, device=device)
        self.num_slots = num_slots

    @property
    def tokens_per_slot(self) -> int:
        return self._k.shape[3]

    def reserve(self, num_tokens: int) -> None:
        """Make room for `num_tokens` in every slot; contents are kept."""
        if num_tokens <= self.tokens_per_slot:
            return
        room = -(-num_tokens // 64) * 64 - self.tokens_per_slot
        self._k, self._v = (F.pad(x, (0, 0, 0, room)) for x in (self._k, self._v))

    def swap(self, a: int, b: int, num_tokens: int) -> None:
        """Exchange two rows, `num_tokens` deep."""
        for x in (self._k, self._v):
            held = x[:, a, :, :num_tokens].clone()
            x[:, a, :, :num_tokens] = x[:, b, :, :num_tokens]
            x[:, b, :, :num_tokens] = held

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        for x in (self._k, self._v):
            x[:, target, :, :num_tokens] = x[:, source, :, :num_tokens]

    def plan(self, positions_N: Sequence[int], extras: Sequence[Extra]) -> tuple[Tensor, _Plan]:
        """Positions_T of the flat tokens (one per active row, then the extras in order) and the plan."""
        device = self._k.device
        last_N = torch.tensor(positions_N, device=device)
        self.reserve(max(positions_N) + 1)
        slots = torch.arange(len(positions_N), device=device)
        if extras:
            extra_positions = torch.cat([torch.arange(e.start, e.end) for e in extras]).to(device)
            extra_slots = torch.cat([torch.full((e.end - e.start,), e.slot) for e in extras]).to(device)
            positions_T, slots_T = torch.cat([last_N, extra_positions]), torch.cat([slots, extra_slots])
        else:
            positions_T, slots_T = last_N, slots
        return positions_T, _Plan(self, last_N, positions_T, slots_T, extras)


class _Plan:
    """Attention over the slots for one forward; masks are made once and used by every layer."""

    def __init__(
        self, kv: SlotKv, last_N: Tensor, positions_T: Tensor, slots_T: Tensor, extras: Sequence[Extra]
    ) -> None:
        self._kv, self._positions_T, self._slots_T = kv, positions_T, slots_T
        self._num_rows = len(last_N)
        self._context = int(last_N.max()) + 1
        self._mask_N = _additive(
            torch.arange(self._context, device=last_N.device) <= last_N[:, None], kv._k.dtype
        )
        self._extras = _PaddedExtras(extras, last_N.device, kv._k.dtype) if extras else None

    def attend(self, layer: int, q_HTD: Tensor, k_KTD: Tensor, v_KTD: Tensor, scale: float) -> Tensor:
        keys, values = self._kv._k[layer], self._kv._v[layer]
        keys[self._slots_T, :, self._positions_T] = k_KTD.transpose(0, 1)
        values[self._slots_T, :, self._positions_T] = v_KTD.transpose(0, 1)
        n, context = self._num_rows, self._context
        heads, _, size = q_HTD.shape
        kv_heads = k_KTD.shape[0]
        q_THD = q_HTD.transpose(0, 1)
        # The query heads that share a key head become the rows of one query: no repeated keys.
        q_NKGD = q_THD[:n].reshape(n, kv_heads, heads // kv_heads, size)
        out = F.scaled_dot_product_attention(
            q_NKGD,
            keys[:n, :, :context],
            values[:n, :, :context],
            attn_mask=self._mask_N[:, None, None],
            scale=scale,
        ).reshape(n, heads, size)
        if self._extras is None:
            return out
        return torch.cat([out, self._extras.attend(q_THD[n:], keys, values, scale)])


class _PaddedExtras:
    """Prefill rows of one forward, padded to the longest."""

    def __init__(self, extras: Sequence[Extra], device: torch.device, dtype: torch.dtype) -> None:
        lengths = torch.tensor([e.end - e.start for e in extras], device=device)
        starts = torch.tensor([e.start for e in extras], device=device)
        offsets = lengths.cumsum(0) - lengths
        column = torch.arange(int(lengths.max()), device=device)
        self._slots = torch.tensor([e.slot for e in extras], device=device)
        self._context = max(e.end for e in extras)
        self._gather = offsets[:, None] + torch.minimum(column, lengths[:, None] - 1)
        self._real = (column < lengths[:, None]).flatten().nonzero()[:, 0]
        position = starts[:, None] + torch.minimum(column, lengths[:, None] - 1)
        self._mask = _additive(torch.arange(self._context, device=device) <= position[:, :, None], dtype)

    def attend(self, q_XHD: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        k, v = keys[self._slots, :, : self._context], values[self._slots, :, : self._context]
        q = q_XHD[self._gather].transpose(1, 2)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=self._mask[:, None], scale=scale, enable_gqa=True
        )
        return out.transpose(1, 2).flatten(0, 1)[self._real]


def _additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(
        ~allowed, float("-inf")
    )
