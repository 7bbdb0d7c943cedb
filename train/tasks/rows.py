"""Rows of files and hub data sets, each with its place for an error message. Read as they are asked for:
who stops early has not read a huge file. Imports no torch.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rocstar.train.recipe.data_config import DataConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.paths import elsewhere

DATA_DIR_VARIABLE = "ROCSTAR_DATA_DIR"
"""Names a directory in which `hub:OWNER/NAME` is looked for as OWNER/NAME before the hub is asked."""

REASONING_GYM = "reasoning_gym"
HUB = "hub:"
_SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
_PARQUET_BATCH = 1024
"""Rows in memory at a time."""

Rows = Iterator[tuple[str, Any]]
"""(where, row) pairs."""


def rows_of(config: DataConfig, base: Path) -> Rows:
    """The rows of a source that is not reasoning-gym. Relative paths start at `base`."""
    return rows_from(config.source, base, split=config.split)


def rows_from(source: str, base: Path, *, split: str, revision: str | None = None) -> Rows:
    """The rows of a file, a folder of them, or a hub data set at a `revision` (None: its newest)."""
    if not source.startswith(HUB):
        return (row for path in source_files(source, base, split=split) for row in _file_rows(path))
    if files := local_copy(source, split=split):
        return (row for path in files for row in _file_rows(path))
    return _hub_rows(source, split, revision)


def name_of(config: DataConfig) -> str:
    """Return a source's name in metrics and records, independent of the location of its files."""
    if config.source.startswith("hub:"):
        return config.source.removeprefix("hub:")
    return Path(config.source).name or config.source


def source_files(source: str, base: Path, *, split: str) -> list[Path]:
    """The files of a source that is no hub data set, in their order."""
    path = base / source
    if path.is_dir():
        return _split_files(path, split)
    if not path.exists():
        raise ConfigError(
            f"data source {source!r}: {str(path)!r} does not exist{elsewhere(path)}; give a path to a "
            f"{', '.join(_SUFFIXES)} file or a directory of them, 'hub:NAME', or {REASONING_GYM!r}"
        )
    return [path]


def local_copy(source: str, *, split: str) -> list[Path]:
    """Return the local files of a hub data set; empty to use the hub."""
    name, _, configuration = source.removeprefix(HUB).partition(":")
    override = os.environ.get(DATA_DIR_VARIABLE)
    if not override or not (Path(override) / name).is_dir():
        return []
    directory = Path(override) / name
    inner = directory / configuration
    return _split_files(inner if inner.is_dir() else directory, split)


def _split_files(directory: Path, split: str) -> list[Path]:
    """The split's files, named SPLIT.jsonl or SPLIT-00000-of-00001.parquet, here or in data/."""
    for folder in (directory, directory / "data"):
        files = [
            path
            for suffix in _SUFFIXES
            for pattern in (f"{split}{suffix}", f"{split}-*{suffix}")
            for path in sorted(folder.glob(pattern))
        ]
        if files:
            return files
    raise ConfigError(
        f"data directory {str(directory)!r} holds no {split!r} split; put {split}.jsonl, {split}.jsonl.gz or "
        f"{split}-*.parquet into it, or set split to one that is there"
    )


def _file_rows(path: Path) -> Rows:
    """(where, row) pairs; `where` names the row in an error message."""
    if path.name.endswith(".parquet"):
        return _parquet_rows(path)
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return jsonl_rows(path)
    raise ConfigError(f"data file {str(path)!r} has an unknown ending; give {', '.join(_SUFFIXES)}")


def jsonl_rows(path: Path) -> Rows:
    """Yield the rows of a JSONL file, blank lines skipped. ConfigError names an invalid line."""
    opener = gzip.open if path.name.endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{path}, line {number}", _parse_line(line, f"{path}, line {number}")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"data file {str(path)!r} cannot be read: {error}; give a UTF-8 JSONL file"
        ) from None


def _parse_line(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
        raise ConfigError(f"{where} is not JSON: {error}; write one JSON object per line") from None


def _parquet_rows(path: Path) -> Rows:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(
            f"data file {str(path)!r} needs pyarrow, which is missing; run: pip install pyarrow"
        ) from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            batches = file.iter_batches(batch_size=_PARQUET_BATCH)
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in enumerate(rows):
                yield f"{path}, row {number}", row
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigError(f"data file {str(path)!r} is not a Parquet file: {error}") from None


def _hub_rows(source: str, split: str, revision: str | None) -> Rows:
    """`hub:OWNER/NAME` or `hub:OWNER/NAME:CONFIGURATION`, through `datasets`."""
    name, _, configuration = source.removeprefix(HUB).partition(":")
    try:
        import datasets
    except ImportError:
        raise ConfigError(
            f"data source {source!r} needs the package datasets, which is missing; "
            f"run: pip install datasets, or put its files into ${DATA_DIR_VARIABLE}/{name}"
        ) from None
    try:
        at = {"revision": revision} if revision else {}
        dataset = datasets.load_dataset(name, configuration or None, split=split, **at)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise ConfigError(
            f"data source {source!r}, split {split!r}, cannot be loaded: {error}; check the "
            "name (hub:OWNER/NAME:CONFIGURATION) and the network, or put its files into "
            f"${DATA_DIR_VARIABLE}/{name}"
        ) from None
    return ((f"{name}, row {number}", row) for number, row in enumerate(dataset))
