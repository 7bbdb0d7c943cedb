"""Files of JSON Lines, and folders of records."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rocstar.engine.record.files import record_files
from rocstar.engine.record.reading import read_records


def write_lines(path: Path, rows: Iterable[Any]) -> str:
    """Write a row per line; return the path as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_folder(folder: Path) -> Iterator[dict[str, Any]]:
    """Records of all finished steps of a folder, in order."""
    for path in record_files(folder).values():
        yield from read_records(path)
