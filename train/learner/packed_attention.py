"""Attention of sequences laid end to end, each without the beginning that it shares with the one before.

    tokens of a prompt | rest of sibling 0 | rest of sibling 1 | ...      path of sibling 1: prompt, its rest

The queries of a sequence are its own tokens; its keys are its whole path. In half precision on an NVIDIA GPU
all sequences are one call of the flash kernel (kernels/varlen_attention.py). Elsewhere sequences of similar
shape make one call, padded to the largest of them.

Shapes: T flat tokens, H query heads, K key-value heads, D head size, S sequences of a call, Q queries and L
keys of its longest sequence, R tokens whose output is asked for in the last layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rocstar.engine.inference.embedded.attention import grouped_attention
from rocstar.kernels import short_attention, varlen_attention
from rocstar.kernels.rows import Readers, gather_rows, pick_rows, place_rows, read_rows, readers_by_row

Ints = npt.NDArray[np.int64]

PADDING = 1 << 14
"""Scores of padding, per head, that cost about as much as one more call does."""
PADDED_SHARE = 0.1
MAX_MASK = 1 << 18
"""Entries of a mask of one sequence at most, where it could do without."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The queries of one sequence: rows of the query tensor, their positions in the path, and the path."""

    rows: Ints
    positions: Ints
    path: Ints
    wanted: Ints | None = None
    """Which of the rows are answered; None = all. The others are repetitions that fill a plain call."""

    @property
    def is_plain(self) -> bool:
        """All of the path asks, as in ordinary causal attention."""
        return len(self.rows) == len(self.path)

    @property
    def num_scores(self) -> int:
        return len(self.rows) * len(self.path)

    @property
    def answered(self) -> Ints:
        return self.rows if self.wanted is None else self.rows[self.wanted]


class PackedAttention:
    """Causal attention within each of several packed sequences.

    Invariant: a token attends to itself and to the earlier tokens of its own sequence, shared or not, and to
    nothing else.
    """

    def __init__(
        self,
        lengths_S: Sequence[int],
        device: torch.device,
        *,
        shared_S: Sequence[int] | None = None,
        kept_R: Tensor | None = None,
    ) -> None:
        """`lengths_S` are the tokens of each sequence that no sequence before it has, in flat order, and
        `shared_S` how many tokens each takes over from the path of the one before. `kept_R` are the sorted
        flat tokens that `attend_kept` is asked about.

        ValueError: a sequence without a token, or one that shares more than the path before it has.
        """
        self._parts, self._device = _parts(lengths_S, shared_S or [0] * len(lengths_S)), device
        self._kept_tokens = None if kept_R is None else kept_R.numpy()
        self.kept_R = None if kept_R is None else kept_R.to(device)

    def attend(self, layer: int, q_HTD: Tensor, k_KTD: Tensor, v_KTD: Tensor, scale: float) -> Tensor:
        """Returns out_THD."""
        if varlen_attention.takes(q_HTD):
            return self._varlen.attend(q_HTD, k_KTD, v_KTD, scale)
        return self._all(q_HTD, k_KTD, v_KTD, scale)

    def attend_kept(self, q_HRD: Tensor, k_KTD: Tensor, v_KTD: Tensor, scale: float) -> Tensor:
        """The same for the queries of the kept tokens alone: out_RHD."""
        if varlen_attention.takes(q_HRD):
            return self._varlen.attend_kept(q_HRD, k_KTD, v_KTD, scale)
        return self._kept(q_HRD, k_KTD, v_KTD, scale)

    # Index tensors are made by the first layer that needs them, which alone knows the type of the numbers.

    @cached_property
    def _varlen(self) -> _Varlen:
        return _Varlen(self._parts, self._kept_tokens, self._device)

    @cached_property
    def _all(self) -> _Calls:
        return _Calls(self._parts, self._device)

    @cached_property
    def _kept(self) -> _Calls:
        assert self._kept_tokens is not None, "no kept tokens were named"
        return _Calls(_only(self._parts, self._kept_tokens), self._device)


def _parts(lengths_S: Sequence[int], shared_S: Sequence[int]) -> list[_Part]:
    parts, path, start = [], np.zeros(0, np.int64), 0
    for own, shared in zip(lengths_S, shared_S, strict=True):
        if own < 0 or own + shared < 1 or not 0 <= shared <= len(path):
            raise ValueError(
                f"every sequence needs a token, and shares at most the {len(path)} of the one before it; "
                f"got {own} of its own and {shared} shared"
            )
        rows = np.arange(start, start + own)
        path = np.concatenate([path[:shared], rows])
        start += own
        if own:  # else it asks nothing that was not asked before
            parts.append(_Part(rows, np.arange(shared, shared + own), path))
    if not parts:
        raise ValueError("every sequence needs a token, got none")
    return parts


def _only(parts: Sequence[_Part], kept_R: Ints) -> list[_Part]:
    """The same sequences asking for kept tokens alone, which are numbered by their place in `kept_R`.

    A long one asks for all of its tokens where it can: causal attention needs no mask. In the place of a
    token that is not kept the kept one before it asks once more.
    """
    some = []
    for part in parts:
        first, end = np.searchsorted(kept_R, [part.rows[0], part.rows[-1] + 1])
        if first == end:
            continue
        kept = kept_R[first:end] - part.rows[0]
        if part.is_plain and len(kept) * len(part.path) > MAX_MASK:
            before = np.searchsorted(kept, part.positions, side="right") - 1
            some.append(_Part(first + np.maximum(before, 0), part.positions, part.path, kept))
        else:
            some.append(_Part(np.arange(first, end), part.positions[kept], part.path))
    return some


def _buckets(parts: Sequence[_Part]) -> list[list[_Part]]:
    """Parts that go into one call: little padding, and plain ones apart, which need no mask."""
    buckets: list[list[_Part]] = []
    most_queries = most_keys = real = 0
    for part in sorted(parts, key=lambda p: (p.is_plain, len(p.rows), len(p.path)), reverse=True):
        queries, keys = max(most_queries, len(part.rows)), max(most_keys, len(part.path))
        if buckets:
            padded = (len(buckets[-1]) + 1) * queries * keys
            fits = padded - real - part.num_scores <= max(PADDING, PADDED_SHARE * real)
        if not buckets or not fits or part.is_plain != buckets[-1][0].is_plain:
            buckets.append([])
            queries, keys, real = len(part.rows), len(part.path), 0
        buckets[-1].append(part)
        most_queries, most_keys, real = queries, keys, real + part.num_scores
    return buckets


@dataclass(frozen=True, slots=True)
class _Asked:
    """The queries of a call without padding: of each sequence the last tokens of its path."""

    cum_S1: Tensor
    longest: int
    places_R: Tensor | None
    """Places of the given queries; the others are zero, and nothing reads their output. None = all."""
    num: int


class _Varlen:
    """One call for all sequences. All index tensors go to the device in one copy, as int32."""

    def __init__(self, parts: Sequence[_Part], kept_R: Ints | None, device: torch.device) -> None:
        paths = [part.path for part in parts]
        rows_P, num_rows = np.concatenate(paths), int(parts[-1].rows[-1]) + 1
        is_shared = len(rows_P) > num_rows  # else every path is its own rows, in flat order
        asked = [_suffixes(parts, kept) for kept in (np.arange(num_rows), kept_R) if kept is not None]
        host = [_ends(paths), *(_ends(tokens) for tokens in asked)]
        if kept_R is not None:
            host.append(np.searchsorted(np.concatenate(asked[-1]), kept_R))
        if is_shared:
            host += [rows_P, *readers_by_row(rows_P, num_rows)]
        moved = torch.from_numpy(np.concatenate(host).astype(np.int32)).to(device, non_blocking=True)
        self._cum_k, cum_T, *rest = torch.split(moved, [len(x) for x in host])
        self._longest = max(len(path) for path in paths)
        self._all = _Asked(cum_T, max(map(len, asked[0])), None, num_rows)
        self._kept: _Asked | None = None
        if kept_R is not None:
            cum_R, places_R, *rest = rest
            num = sum(map(len, asked[-1]))
            places = None if num == len(kept_R) else places_R.long()
            self._kept = _Asked(cum_R, max(map(len, asked[-1])), places, num)
        self._readers = Readers(*rest) if is_shared else None

    def attend(self, q_HTD: Tensor, k_KTD: Tensor, v_KTD: Tensor, scale: float) -> Tensor:
        """Returns out_THD."""
        return self._call(self._all, q_HTD, k_KTD, v_KTD, scale)

    def attend_kept(self, q_HRD: Tensor, k_KTD: Tensor, v_KTD: Tensor, scale: float) -> Tensor:
        """Returns out_RHD."""
        assert self._kept is not None, "no kept tokens were named"
        return self._call(self._kept, q_HRD, k_KTD, v_KTD, scale)

    def _call(self, asked: _Asked, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        if self._readers is not None:
            k, v = read_rows(k, v, self._readers)
        if asked.places_R is not None:
            q = place_rows(q, asked.places_R, asked.num)
        longest = (asked.longest, self._longest)
        out = varlen_attention.attend(q, k, v, asked.cum_S1, self._cum_k, longest, scale)
        return out if asked.places_R is None else pick_rows(out, asked.places_R)


def _suffixes(parts: Sequence[_Part], kept_R: Ints) -> list[Ints]:
    """The tokens of each sequence from the first kept one to its last; the last alone if none is kept."""
    bounds = [np.searchsorted(kept_R, [part.rows[0], part.rows[-1] + 1]) for part in parts]
    firsts = [kept_R[a] if a < b else part.rows[-1] for part, (a, b) in zip(parts, bounds, strict=True)]
    return [part.rows[part.rows >= first] for part, first in zip(parts, firsts, strict=True)]


def _ends(sequences: Sequence[Ints]) -> Ints:
    """0, and where each of the sequences ends when they are laid end to end."""
    return np.concatenate([[0], np.cumsum([len(x) for x in sequences])])


class _Calls:
    """Return the kernel calls for all parts, and the order of their results."""

    def __init__(self, parts: Sequence[_Part], device: torch.device) -> None:
        buckets = _buckets(parts)
        self._calls = [_Call(bucket, device) for bucket in buckets]
        begins = np.cumsum([0, *(call.num_rows for call in self._calls)])
        places = [call.real + begin for call, begin in zip(self._calls, begins, strict=False)]
        order = np.concatenate([part.answered for bucket in buckets for part in bucket])
        self._places = torch.from_numpy(np.concatenate(places)[np.argsort(order)]).to(device)

    def __call__(self, q_HTD: Tensor, k_KTD: Tensor, v_KTD: Tensor, scale: float) -> Tensor:
        rows, keys = [call.rows_SQ for call in self._calls], [call.keys_SL for call in self._calls]
        gathered = (
            gather_rows(x.transpose(0, 1), indexes) for x, indexes in ((q_HTD, rows), (k_KTD, keys), (v_KTD, keys))
        )
        outs = [call(q, k, v, scale) for call, q, k, v in zip(self._calls, *gathered, strict=True)]
        return pick_rows(torch.cat(outs), self._places)


class _Call:
    """One bucket. Padding repeats a sequence's last query and key; no real query sees a padded key."""

    def __init__(self, parts: Sequence[_Part], device: torch.device) -> None:
        num_queries, num_keys = max(len(p.rows) for p in parts), max(len(p.path) for p in parts)
        rows = np.empty((len(parts), num_queries), np.int64)
        positions, keys = np.empty_like(rows), np.empty((len(parts), num_keys), np.int64)
        for k, part in enumerate(parts):
            for table, values in ((rows, part.rows), (positions, part.positions), (keys, part.path)):
                table[k, : len(values)] = values
                table[k, len(values) :] = values[-1]
        real = np.concatenate(
            [k * num_queries + (np.arange(len(p.rows)) if p.wanted is None else p.wanted) for k, p in enumerate(parts)]
        )
        self.num_rows = rows.size
        self.real = real
        """The positions of the results in the output."""
        self.rows_SQ, self.keys_SL = torch.from_numpy(rows).to(device), torch.from_numpy(keys).to(device)
        self._positions_SQ1 = None if parts[0].is_plain else torch.from_numpy(positions)[..., None].to(device)
        self._mask_S1QL: Tensor | None = None

    def _mask(self, dtype: torch.dtype) -> Tensor | None:
        """0 where a query sees a key, -inf elsewhere; made once. None: plain causal attention."""
        if self._positions_SQ1 is not None and self._mask_S1QL is None:
            columns = torch.arange(self.keys_SL.shape[1], device=self.keys_SL.device)
            hidden_SQL = columns > self._positions_SQ1
            zeros = torch.zeros(hidden_SQL.shape, dtype=dtype, device=columns.device)
            self._mask_S1QL = zeros.masked_fill_(hidden_SQL, float("-inf"))[:, None]
        return self._mask_S1QL

    def __call__(self, q_SQHD: Tensor, k_SLKD: Tensor, v_SLKD: Tensor, scale: float) -> Tensor:
        """Return a result for each of the gathered rows, padding included, in flat order."""
        q, k, v = (x.transpose(1, 2) for x in (q_SQHD, k_SLKD, v_SLKD))
        mask = self._mask(q.dtype)
        attend = short_attention.attend if short_attention.is_faster(q, k) else grouped_attention
        out = attend(q, k, v, mask, scale)
        return out.transpose(1, 2).flatten(0, 1)
