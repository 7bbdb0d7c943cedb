"""Every row of a build in one table on disk: its written form, or the reason to drop it.

Invariant: a row has at most one reason, the first. Results never depend on the order of the rows: `number`
only distinguishes them.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from rocstar.train.data.candidate import Candidate, Dropped

SCHEMA: Final = """
CREATE TABLE rows (
    number INTEGER PRIMARY KEY, source INTEGER, row TEXT, id TEXT, key BLOB, label TEXT, problem TEXT,
    body TEXT, licence TEXT, told TEXT, reason TEXT, evidence TEXT, shown TEXT, met BLOB
);
CREATE TABLE position (source INTEGER PRIMARY KEY, read INTEGER);
CREATE TABLE done (phase TEXT PRIMARY KEY);
CREATE TABLE attempts (task TEXT PRIMARY KEY, correct INTEGER, attempts INTEGER);
"""
_BATCH = 2_000


@dataclass(frozen=True, slots=True)
class LiveRow:
    """A row that is not dropped."""

    number: int
    source: int
    row: str
    id: str
    told: dict[str, Any]


class RowTable:
    """The table in an open work file (work_file.py)."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        database.create_function("draw", 2, _draw, deterministic=True)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes of the block, or none."""
        with self.database:  # commits at its end, and rolls back for whatever is raised
            self.database.execute("BEGIN")
            yield

    def is_done(self, phase: str) -> bool:
        """Whether a phase was finished."""
        return self.database.execute("SELECT 1 FROM done WHERE phase = ?", (phase,)).fetchone() is not None

    def finish(self, phase: str) -> None:
        """Mark a phase as finished, in its last transaction."""
        self.database.execute("INSERT INTO done VALUES (?)", (phase,))

    def position(self, source: int) -> int:
        """How many rows of a source are in the table."""
        found = self.database.execute("SELECT read FROM position WHERE source = ?", (source,)).fetchone()
        return int(found[0]) if found else 0

    def add(self, source: int, rows: Sequence[Candidate | Dropped]) -> None:
        """Append rows of a source, in one transaction with its position."""
        with self.transaction():
            self.database.executemany(
                "INSERT INTO rows (source, row, id, key, label, problem, body, licence, told, reason,"
                " evidence, shown) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [_columns(source, row) for row in rows],
            )
            self.database.execute(
                "INSERT INTO position VALUES (?, ?) ON CONFLICT DO UPDATE SET read = read + excluded.read",
                (source, len(rows)),
            )

    def drop(self, number: int, reason: str, evidence: Mapping[str, Any]) -> None:
        """Leave a row out. A row that is left out already keeps its reason."""
        self.database.execute(
            "UPDATE rows SET reason = ?, evidence = ?, shown = substr(problem, 1, 300)"
            " WHERE number = ? AND reason IS NULL",
            (reason, _json(evidence), number),
        )

    def tell(self, row: LiveRow, told: Mapping[str, Any]) -> None:
        """Store a decision on a kept row."""
        self.database.execute(
            "UPDATE rows SET told = ? WHERE number = ?", (_json({**row.told, **told}), row.number)
        )

    def live(self, more: str = "") -> Iterator[tuple[LiveRow, Any]]:
        """Rows that are not dropped, each with the value of `more`; they may be changed meanwhile."""
        last = -1
        while batch := self.database.execute(
            f"SELECT number, source, row, id, told, {more or 'NULL'} FROM rows"
            " WHERE reason IS NULL AND number > ? ORDER BY number LIMIT ?",
            (last, _BATCH),
        ).fetchall():
            for number, source, row, id_, told, value in batch:
                yield LiveRow(number, source, row, id_, json.loads(told)), value
            last = batch[-1][0]

    def counts(self) -> Iterator[tuple[str | None, int, int]]:
        """(reason or None, source, rows)."""
        yield from self.database.execute("SELECT reason, source, COUNT(*) FROM rows GROUP BY reason, source")

    def kept(self) -> Iterator[tuple[int, str, str, dict[str, Any], str, dict[str, Any]]]:
        """(source, row, id, body, licence, told) of kept rows, by id."""
        found = self.database.execute(
            "SELECT source, row, id, body, licence, told FROM rows WHERE reason IS NULL ORDER BY id"
        )
        for source, row, id_, body, licence, told in found:
            yield source, row, id_, json.loads(body), licence, json.loads(told)

    def dropped(self) -> Iterator[tuple[int, str, str, dict[str, Any], str]]:
        """(source, row, reason, evidence, shown) of dropped rows, by source and row."""
        found = self.database.execute(
            "SELECT source, row, reason, evidence, shown FROM rows WHERE reason IS NOT NULL"
            " ORDER BY source, row, reason, evidence, shown"
        )
        for source, row, reason, evidence, shown in found:
            yield source, row, reason, json.loads(evidence), shown


def _columns(source: int, row: Candidate | Dropped) -> tuple[Any, ...]:
    if isinstance(row, Dropped):
        return (source, _text(row.row), *[None] * 7, row.reason, _json(row.evidence), _text(row.shown))
    return (
        source,
        _text(row.row),
        row.id,
        row.key,
        _text(row.label),
        _text(row.problem),
        _json(row.body),
        _text(row.licence),
        _json(row.told),
        *[None] * 3,
    )


def _json(value: Any) -> str:
    """ASCII, so that half of a surrogate pair comes back as it was."""
    return json.dumps(value)


def _text(value: str) -> str:
    """A text that a database can hold: half of a surrogate pair is a question mark."""
    return value.encode("utf-8", "replace").decode("utf-8")


def _draw(seed: int, id_: str) -> bytes:
    """Return the rank of a row in the draw, from its id and the seed alone."""
    return hashlib.blake2b(f"{seed}\0{id_}".encode(), digest_size=8).digest()
