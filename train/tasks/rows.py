"""Rows of files and hub data sets, each with its location for error messages. Imports no torch.

Rows are read lazily. The columns besides question and answer become a task's `meta`, as bounded JSON values:

- unchanged: null, true, finite numbers, text, lists and objects of these; a tuple becomes a list
- as text: dates and times (ISO 8601), bytes (base64); durations, decimals, UUIDs, nan, infinities and keys of
  objects as `str` writes them
- refused by name: everything else (an image, say), and values that are too large or too deep
"""

import base64
import datetime
import decimal
import gzip
import json
import math
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rocstar.engine.types import MARKS_OF_ENVIRONMENT
from rocstar.sandbox.command_line import format_error
from rocstar.sandbox.extras import pip_command
from rocstar.train.recipe.data_config import DataConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.paths import missing_path_hint

DATA_DIR_VARIABLE = "ROCSTAR_DATA_DIR"
"""The variable with a directory in which `hub:OWNER/NAME` is first searched as OWNER/NAME."""

REASONING_GYM = "reasoning_gym"
HUB = "hub:"
_SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
_PARQUET_BATCH = 1024
"""Rows in memory at a time."""

Rows = Iterator[tuple[str, Any]]
"""(where, row) pairs; `where` names the row in an error message."""

MAX_META_BYTES = 256 << 10
"""The maximum size of a task's meta as JSON: it is in every trajectory's record and every order to a node."""

MAX_DEPTH = 32

MARKS_OF_REASONING_GYM = frozenset({"family", "entry"})
"""A task whose `meta` has both is scored as one of reasoning-gym's."""

_AS_STR = (datetime.timedelta, decimal.Decimal, uuid.UUID)


def rows_from(source: str, base: Path, *, split: str, revision: str | None = None) -> Rows:
    """Return the rows of a file, a folder of files, or a hub data set at a `revision` (None: its newest).

    Relative paths start at `base`.
    """
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
    """Return the files of a source that is not a hub data set, in their order."""
    path = base / source
    if path.is_dir():
        return _split_files(path, split)
    if not path.exists():
        raise ConfigError(
            f"data source {source!r}: {str(path)!r} does not exist{missing_path_hint(path)}; give a path to "
            f"a {', '.join(_SUFFIXES)} file or a directory of them, 'hub:NAME', or {REASONING_GYM!r}"
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
    """Return the split's files, named SPLIT.jsonl or SPLIT-00000-of-00001.parquet, here or in data/."""
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
                    where = f"{path}, line {number}"
                    try:
                        row = json.loads(line)
                    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
                        raise ConfigError(f"{where} is not JSON: {error}; write one JSON object per line") from None
                    yield where, row
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read data file {format_error(error, path)}; pass a UTF-8 JSONL file") from None


def _parquet_rows(path: Path) -> Rows:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(
            f"data file {str(path)!r} needs pyarrow, which is missing; run: {pip_command('pyarrow')}"
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
    """Load `hub:OWNER/NAME` or `hub:OWNER/NAME:CONFIGURATION` through `datasets`."""
    name, _, configuration = source.removeprefix(HUB).partition(":")
    try:
        import datasets
    except ImportError:
        raise ConfigError(
            f"data source {source!r} needs the package datasets, which is missing; "
            f"run: {pip_command('datasets')}, or put its files into ${DATA_DIR_VARIABLE}/{name}"
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


def meta_of(row: Mapping[str, Any], *, without: frozenset[str], where: str) -> dict[str, Any]:
    """Return the columns of a row that are not in `without`. ConfigError for one that cannot be stored."""
    meta = {}
    for name, value in row.items():
        if name in without:
            continue
        try:
            meta[str(name)] = _as_json(value, MAX_DEPTH)
        except TypeError as error:
            raise ConfigError(
                f"{where}: column {name!r} holds {error}, which JSON cannot hold; write the data without the "
                "column, or turn it into text"
            ) from None
    for marks, whose in ((MARKS_OF_REASONING_GYM, "reasoning-gym"), (MARKS_OF_ENVIRONMENT, "an environment")):
        if meta.keys() >= marks:
            names = " and ".join(map(repr, sorted(marks)))
            raise ConfigError(f"{where} has columns {names}, by which a task of {whose} is known; rename one")
    sizes = {name: len(json.dumps(value)) for name, value in meta.items()}
    if sum(sizes.values()) > MAX_META_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise ConfigError(
            f"{where}: the columns besides question and answer take {sum(sizes.values()):,} bytes as JSON, "
            f"{largest!r} alone {sizes[largest]:,}; at most {MAX_META_BYTES:,} go with a task: write the "
            "data without it"
        )
    return meta


def _as_json(value: Any, depth: int) -> Any:
    """Return a value as JSON values. TypeError names a value that JSON cannot hold."""
    if not depth:
        raise TypeError(f"values more than {MAX_DEPTH} levels deep")
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _as_json(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item, depth - 1) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, _AS_STR):
        return str(value)
    raise TypeError(f"a {type(value).__name__}")
