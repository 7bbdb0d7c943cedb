"""The rows of a build's sources, and their identity."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rocstar.train.data.build_config import SourceConfig
from rocstar.train.data.funnel import SourceTold
from rocstar.train.data.licences import forbids_commercial_use
from rocstar.train.tasks.rows import HUB, local_copy, rows_from, source_files

_CHUNK = 1 << 20


def rows_of_source(source: SourceConfig) -> Iterator[Any]:
    """The rows, as they are stored. ConfigError for a file that cannot be read, or a line that is no row."""
    rows = rows_from(source.source, Path(), split=source.split, revision=source.revision or None)
    return (row for _, row in rows)


def told_of(source: SourceConfig, *, commercial: bool) -> SourceTold:
    """Return a source's entry in provenance and funnel; local files are read once, for their hash."""
    left_out = ""
    if commercial and not source.licence_field:
        left_out = forbids_commercial_use(source.licence) or ""
    files = _local_files(source.source, source.split)
    return SourceTold(
        name=source.name,
        source=source.source if source.source.startswith(HUB) else Path(source.source).name,
        revision=source.revision,
        licence=source.licence,
        files="" if left_out or not files else hash_of(files),
        left_out=left_out,
    )


def hash_of_source(source: str, split: str = "train") -> str:
    """The hash of a source's local files; "" where the hub is asked."""
    files = _local_files(source, split)
    return hash_of(files) if files else ""


def _local_files(source: str, split: str) -> list[Path]:
    if source.startswith(HUB):
        return local_copy(source, split=split)
    return source_files(source, Path(), split=split)


def hash_of(files: list[Path]) -> str:
    """A hash of the contents of files, each with its length, in their order."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"
