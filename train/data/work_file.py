"""A database of half-done work in one file, from which a killed command resumes.

Invariant: committed work stays, uncommitted work leaves no trace. A file of other work is started again: its
content can be recomputed.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rocstar.train.recipe.errors import ConfigError

CACHE_KIB = 32 << 10
"""The maximum size of the database's pages in memory."""


@contextmanager
def open_work(path: Path, schema: str, about: Any) -> Iterator[sqlite3.Connection]:
    """Open the work at `path`; the caller begins and commits transactions.

    Args:
        schema: SQL that makes the tables of work that is begun.
        about: JSON values that identify this work.

    Raises:
        ConfigError: the disk is full or cannot be written.
    """
    digest = hashlib.sha256(json.dumps([schema, about], sort_keys=True).encode()).hexdigest()
    try:
        database = _opened(path, digest, schema)
        try:
            yield database
        finally:
            database.close()
    except sqlite3.OperationalError as error:
        raise ConfigError(f"{str(path)!r} cannot be written: {error}; make room, or choose another --out") from None


def _opened(path: Path, digest: str, schema: str) -> sqlite3.Connection:
    database = _connected(path)
    try:
        if database.execute("SELECT digest FROM about").fetchone() == (digest,):
            return database
    except sqlite3.DatabaseError:
        pass  # a file that was just made, or is no database
    database.close()
    discard_work(path)
    database = _connected(path)
    database.executescript(
        f"BEGIN; CREATE TABLE about (digest TEXT); INSERT INTO about VALUES ('{digest}'); {schema} COMMIT;"
    )
    return database


def _connected(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    except sqlite3.DatabaseError:
        with path.open("rb") as file:
            is_database = file.read(16) in (b"", b"SQLite format 3\0")
        if is_database:
            raise
        database.close()
        discard_work(path)
        return _connected(path)
    return database


def discard_work(path: Path) -> None:
    """Remove the file and SQLite's journals."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
