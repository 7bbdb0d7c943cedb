"""Every row of a build in one table on disk: its written form, or the reason to drop it.

Invariant: a row has at most one reason, the first. Results never depend on the order of the rows: `number`
only distinguishes them.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rocstar.train.data.build_config import SourceConfig, forbids_commercial_use
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.data import field_of

SHOWN_CHARACTERS: Final = 300
_ABSENT: Final[tuple[object, ...]] = (None, "", False, [], {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A row that can be used, as it would be written."""

    row: str
    """The row's name in its source: its own id, or a hash of it."""
    id: str
    """Hash of the written row: the task id of a recipe."""
    key: bytes
    """Equal for copies (`words.conversation_key`)."""
    label: str
    """The answer, which copies of a problem must share; "" of a conversation."""
    problem: str
    """The text compared with evaluation sets."""
    body: Mapping[str, Any]
    licence: str
    decisions: Mapping[str, Any] = field(default_factory=dict)
    """by filter"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A row that is left out."""

    row: str
    reason: str
    """One of funnel.REASONS."""
    evidence: Mapping[str, Any]
    shown: str = ""
    """The beginning of its text."""


def row_name(row: Any) -> str:
    """Return the row's id, or a hash of its content, independent of its position in the file."""
    given = row.get("id") if isinstance(row, Mapping) else None
    if isinstance(given, str | int) and not isinstance(given, bool):
        return str(given)
    text = json.dumps(row, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:16]


def clipped(text: str) -> str:
    """Return a text that is short enough for evidence."""
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def earlier(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return an earlier build's decision on a row, if it has one."""
    provenance = row.get("provenance")
    return {"earlier": dict(provenance)} if isinstance(provenance, Mapping) else {}


def rejection_reason(
    row: Mapping[str, Any], source: SourceConfig, *, commercial: bool
) -> tuple[str, dict[str, Any]] | None:
    """Return why the source's entry excludes a row, with evidence; None if it includes it."""
    for name, wanted in source.only.items():
        value = value_at(row, name)
        if value not in (wanted if isinstance(wanted, list) else [wanted]):
            return "not_selected", {"field": name, "value": clipped(str(value))}
    for name in source.without:
        if (value := value_at(row, name)) not in _ABSENT:
            return "not_selected", {"field": name, "value": clipped(str(value))}
    if commercial and (why := forbids_commercial_use(licence_of(row, source))):
        return "licence", {"licence": why}
    return None


def licence_of(row: Mapping[str, Any], source: SourceConfig) -> str:
    """Return the licence of a row, or that of its source."""
    licence = value_at(row, source.licence_field) if source.licence_field else None
    return licence if isinstance(licence, str) and licence.strip() else source.licence


def value_at(row: Mapping[str, Any], field: str) -> Any:
    """Return the value of a field, or None if it is absent. Dots step into objects."""
    try:
        return field_of(row, field, "the row")
    except ConfigError:
        return None


SCHEMA: Final = Path(__file__).with_name("row_table.sql").read_text(encoding="utf-8")
_BATCH = 2_000
_ORDER: Final = "source, id, row, decisions, licence"
"""The order of copies: by every written column, so that the order of rows in a source does not matter."""
LISTED: Final = 5
"""The maximum number of copies in evidence and provenance."""


@dataclass(frozen=True, slots=True)
class LiveRow:
    """A row that is not dropped."""

    number: int
    source: int
    row: str
    id: str
    decisions: dict[str, Any]


class RowTable:
    """The table in an open work file (work_file.py)."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        database.create_function("draw", 2, _draw, deterministic=True)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all changes of the block, or none."""
        with self.database:  # commits at its end, and rolls back for whatever is raised
            self.database.execute("BEGIN")
            yield

    def is_done(self, phase: str) -> bool:
        """True if a phase was finished."""
        return self.database.execute("SELECT 1 FROM done WHERE phase = ?", (phase,)).fetchone() is not None

    def finish(self, phase: str) -> None:
        """Mark a phase as finished, in its last transaction."""
        self.database.execute("INSERT INTO done VALUES (?)", (phase,))

    def position(self, source: int) -> int:
        """Return the number of a source's rows in the table."""
        found = self.database.execute("SELECT read FROM position WHERE source = ?", (source,)).fetchone()
        return int(found[0]) if found else 0

    def add(self, source: int, rows: Sequence[Candidate | Dropped]) -> None:
        """Append rows of a source, in one transaction with its position."""
        with self.transaction():
            self.database.executemany(
                "INSERT INTO rows (source, row, id, key, label, problem, body, licence, decisions, reason,"
                " evidence, shown) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [_columns(source, row) for row in rows],
            )
            self.database.execute(
                "INSERT INTO position VALUES (?, ?) ON CONFLICT DO UPDATE SET read = read + excluded.read",
                (source, len(rows)),
            )

    def drop(self, number: int, reason: str, evidence: Mapping[str, Any]) -> None:
        """Drop a row. A dropped row keeps its first reason."""
        self.database.execute(
            "UPDATE rows SET reason = ?, evidence = ?, shown = substr(problem, 1, 300)"
            " WHERE number = ? AND reason IS NULL",
            (reason, json.dumps(evidence), number),
        )

    def note(self, row: LiveRow, decision: Mapping[str, Any]) -> None:
        """Store a decision on a kept row."""
        self.database.execute(
            "UPDATE rows SET decisions = ? WHERE number = ?", (json.dumps({**row.decisions, **decision}), row.number)
        )

    def live(self, more: str = "") -> Iterator[tuple[LiveRow, Any]]:
        """Yield the rows that are not dropped, each with the value of `more`; they may change meanwhile."""
        last = -1
        while batch := self.database.execute(
            f"SELECT number, source, row, id, decisions, {more or 'NULL'} FROM rows"
            " WHERE reason IS NULL AND number > ? ORDER BY number LIMIT ?",
            (last, _BATCH),
        ).fetchall():
            for number, source, row, id_, decisions, value in batch:
                yield LiveRow(number, source, row, id_, json.loads(decisions)), value
            last = batch[-1][0]

    def resolve_duplicates(self, names: Sequence[str]) -> None:
        """Drop the copies of every row: all if their labels differ, else all but the first.

        The first is that of the first source, by id. `names`: of the sources.
        """
        with self.transaction():
            self.database.execute(
                "CREATE TABLE same AS SELECT key, COUNT(DISTINCT label) AS labels FROM rows"
                " WHERE reason IS NULL GROUP BY key HAVING COUNT(*) > 1"
            )
            for key, num_labels in self.database.execute("SELECT key, labels FROM same"):
                copies = self.database.execute(
                    "SELECT label, number, source, row, id, decisions FROM rows"
                    f" WHERE key = ? AND reason IS NULL ORDER BY {_ORDER}",
                    (key,),
                ).fetchall()
                rows = [
                    LiveRow(number, source, row, id_, json.loads(decisions))
                    for _, number, source, row, id_, decisions in copies
                ]
                named = [{"source": names[one.source], "row": one.row} for one in rows]
                if num_labels > 1:
                    labels: dict[str, list[Any]] = {}
                    for (label, *_), name in zip(copies, named, strict=True):
                        labels.setdefault(label, []).append(name)
                    evidence = {"labels": {label: some[:LISTED] for label, some in sorted(labels.items())}}
                    for one in rows:
                        self.drop(one.number, "labels_disagree", evidence)
                else:
                    self.note(rows[0], {"copies": {"rows": len(rows) - 1, "some": named[1 : LISTED + 1]}})
                    for one in rows[1:]:
                        self.drop(one.number, "duplicate", {"of": named[0]})
            self.database.execute("DROP TABLE same")
            self.finish("copies")


def _columns(source: int, row: Candidate | Dropped) -> tuple[Any, ...]:
    # JSON is ASCII, so that half of a surrogate pair comes back unchanged.
    if isinstance(row, Dropped):
        return (source, _text(row.row), *[None] * 7, row.reason, json.dumps(row.evidence), _text(row.shown))
    texts = _text(row.label), _text(row.problem), json.dumps(row.body), _text(row.licence)
    return (source, _text(row.row), row.id, row.key, *texts, json.dumps(row.decisions), *[None] * 3)


def _text(value: str) -> str:
    """Return a text that a database can hold: half of a surrogate pair becomes a question mark."""
    return value.encode("utf-8", "replace").decode("utf-8")


def _draw(seed: int, id_: str) -> bytes:
    """Return the rank of a row in the draw, from its id and the seed alone."""
    return hashlib.blake2b(f"{seed}\0{id_}".encode(), digest_size=8).digest()
