"""Files of JSON Lines."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_lines(path: Path, rows: Iterable[Any]) -> str:
    """Write a row per line; return the path as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]
