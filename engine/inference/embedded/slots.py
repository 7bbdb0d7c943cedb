"""Which trajectory owns which slot of the cache, and which of them decode.

Invariant: a row's KV is exactly that of its ids[:cached]. A slot is its trajectory's from the first request
until `release`. Where the cache is not native, slots [0, num_active) belong to the rows that have a request,
without gaps.
"""

from __future__ import annotations

from rocstar.engine.inference.embedded.kv import Extra, SlotKv
from rocstar.engine.inference.embedded.rows import DecodeRequest, Row


class Slots:
    def __init__(self, kv: SlotKv, max_rows: int) -> None:
        self._kv = kv
        self.limit = max_rows
        """Rows at most at present; up to max_rows."""
        self._slots: list[Row | None] = [None] * max_rows
        self._donors: dict[tuple[int, ...], Row] = {}
        """A row that holds a prompt's KV, by the prompt: siblings copy it, and inherit it when it leaves."""
        self.rows: dict[str, Row] = {}
        self._active: dict[str, Row] = {}
        """Those that decode, in the order in which they began."""
        self._behind: dict[str, Row] = {}
        """The rows of them that lack keys before their last token, in the same order."""

    @property
    def num_active(self) -> int:
        return len(self._active)

    def active(self) -> list[Row]:
        """The rows that decode; by slot where the cache is not native."""
        if self._kv.is_native:
            return list(self._active.values())
        return [row for row in self._slots[: self.num_active] if row is not None]

    def row_in(self, slot: int) -> Row:
        """Return the trajectory of an occupied slot."""
        row = self._slots[slot]
        assert row is not None
        return row

    def num_tokens(self) -> int:
        """Tokens of all trajectories here. From any thread."""
        return sum(len(row.ids) for row in list(self.rows.values()))

    def longest(self) -> int:
        """Tokens of the longest row."""
        return max((len(row.ids) for row in self.rows.values()), default=0)

    def start(self, request: DecodeRequest) -> bool:
        """Let the request's row decode. False: no slot is free, or a sibling is computing its prompt now."""
        row = self.rows.get(request.row_id)
        if row is None:
            row = self._new_row(request)
            if row is None:
                return False
        elif row.ids[: row.cached] != request.ids[: row.cached]:
            row.cached = 0
        row.cached = min(row.cached, len(request.ids) - 1)
        row.ids, row.request = request.ids, request
        if not request.new_ids:  # else it was evicted: it reports the tokens reused at first
            request.cached_tokens = row.cached
        if not self._kv.is_native:
            self._move(row, self.num_active)
        self._active[row.row_id] = row
        if row.cached < len(row.ids) - 1:
            self._behind[row.row_id] = row
        return True

    def stop(self, row: Row) -> None:
        """The row's request is over; its KV stays."""
        row.request = None
        del self._active[row.row_id]
        self._behind.pop(row.row_id, None)
        if not self._kv.is_native:
            self._move(row, self.num_active)

    def release(self, row: Row) -> None:
        """Forget a row that does not decode."""
        self._slots[row.slot] = None
        del self.rows[row.row_id]
        if self._donors.get(row.prefix) is row:
            del self._donors[row.prefix]
            heirs = [other for other in self.rows.values() if other.prefix == row.prefix]
            if heirs:
                self._donors[row.prefix] = max(heirs, key=lambda other: other.cached)

    def youngest(self) -> Row | None:
        """The row that came last, of those that do not decode if there are any."""
        rows = list(self.rows.values())
        return next((row for row in reversed(rows) if row.request is None), rows[-1] if rows else None)

    def evict(self, row: Row) -> DecodeRequest | None:
        """Forget a row. Its request, if it has one, starts again as that of a new row."""
        request = row.request
        if request is not None:
            self.stop(row)
        self.release(row)
        return request

    def compact(self) -> None:
        """Move rows into free slots below them, so that slots [0, number of rows) are those in use."""
        count = len(self.rows)
        free = [slot for slot in range(count) if self._slots[slot] is None]
        high = [row for row in self._slots[count:] if row is not None]
        for row, slot in zip(high, free, strict=True):
            self._move(row, slot)

    def forget_kv(self) -> None:
        """The weights changed: no key or value is valid."""
        for row in self.rows.values():
            row.cached = 0
        self._behind = dict(self._active)

    def take_extras(self, budget: int) -> list[Extra]:
        """The first `budget` uncached tokens of the decoding rows, their last ones apart."""
        extras = []
        for row in list(self._behind.values()):
            missing = len(row.ids) - 1 - row.cached
            if not missing:
                del self._behind[row.row_id]
            elif budget:
                end = row.cached + min(missing, budget)
                extras.append(Extra(slot=row.slot, start=row.cached, end=end))
                budget -= end - row.cached
        return extras

    def _new_row(self, request: DecodeRequest) -> Row | None:
        if len(self.rows) >= self.limit:
            return None
        prefix = tuple(request.ids[:-1])
        donor = self._donors.get(prefix)
        if donor is not None and tuple(donor.ids[: len(prefix)]) != prefix:
            donor = None
        if donor is not None and donor.cached < len(prefix) and donor.request is not None:
            return None
        slot = self._slots.index(None, 0 if self._kv.is_native else self.num_active)
        row = Row(row_id=request.row_id, slot=slot, ids=[], prefix=prefix)
        if donor is None or donor.cached < len(prefix):
            self._donors[prefix] = row
            donor = self.rows.get(request.parent) if request.parent else None
        if donor is not None:
            cached = min(donor.cached, len(prefix))
            if (known := donor.ids[:cached]) == request.ids[:cached]:
                self._kv.copy(donor.slot, slot, cached)
                row.cached, row.ids = cached, known
        self._slots[slot] = self.rows[row.row_id] = row
        return row

    def _move(self, row: Row, slot: int) -> None:
        """Exchange the row with the contents of `slot`."""
        other, old = self._slots[slot], row.slot
        if other is row:
            return
        if other is None:
            self._kv.copy(old, slot, row.cached)
        else:
            self._kv.swap(old, slot, max(row.cached, other.cached))
            other.slot = old
        self._slots[slot], self._slots[old] = row, other
        row.slot = slot
