"""Rows that are one: the first source's stays, and if their labels disagree none does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from rocstar.train.data.row_table import LiveRow, RowTable

LISTED: Final = 5
"""Copies that evidence and provenance name."""
ORDER: Final = "source, id, row, told, licence"
"""By all that is written of a row, so that it does not matter which came first."""


def settle_copies(table: RowTable, names: Sequence[str]) -> None:
    """Drop copies of every row. Of equal rows the one of the first source stays, of these the first by id."""
    table.database.execute(
        "CREATE TABLE same AS SELECT key, COUNT(DISTINCT label) AS labels FROM rows WHERE reason IS NULL"
        " GROUP BY key HAVING COUNT(*) > 1"
    )
    for key, labels in table.database.execute("SELECT key, labels FROM same"):
        members = _members(table, key)
        if labels > 1:
            _drop_all(table, members, names)
        else:
            _keep_first(table, [row for row, _ in members], names)
    table.database.execute("DROP TABLE same")


def _members(table: RowTable, key: bytes) -> list[tuple[LiveRow, str]]:
    found = table.database.execute(
        "SELECT number, source, row, id, told, label FROM rows WHERE key = ? AND reason IS NULL"
        f" ORDER BY {ORDER}",
        (key,),
    )
    return [
        (LiveRow(number, source, row, id_, json.loads(told)), label)
        for number, source, row, id_, told, label in found.fetchall()
    ]


def _drop_all(table: RowTable, members: Sequence[tuple[LiveRow, str]], names: Sequence[str]) -> None:
    labels: dict[str, list[Any]] = {}
    for row, label in members:
        labels.setdefault(label, []).append(_named(row, names))
    evidence = {"labels": {label: named[:LISTED] for label, named in sorted(labels.items())}}
    for row, _ in members:
        table.drop(row.number, "labels_disagree", evidence)


def _keep_first(table: RowTable, members: Sequence[LiveRow], names: Sequence[str]) -> None:
    first, *others = members
    table.tell(
        first, {"copies": {"rows": len(others), "some": [_named(row, names) for row in others[:LISTED]]}}
    )
    for row in others:
        table.drop(row.number, "duplicate", {"of": _named(first, names)})


def _named(row: LiveRow, names: Sequence[str]) -> dict[str, str]:
    return {"source": names[row.source], "row": row.row}
