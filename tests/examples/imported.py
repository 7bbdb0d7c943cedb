"""Examples as modules, and runs of their commands."""

import contextlib
import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ..kept_pool import kept_pools

EXAMPLES = Path(__file__).parents[2] / "examples"


@contextlib.contextmanager
def imported(name: str, *neighbours: str) -> Iterator[ModuleType]:
    """Import run.py of an example, which imports its neighbours."""
    path = list(sys.path)
    sys.path.insert(0, str(EXAMPLES / name))
    try:
        yield importlib.import_module("run")
    finally:
        sys.path[:] = path
        for module in ("run", *neighbours):
            sys.modules.pop(module, None)


def run(example: ModuleType, arguments: Sequence[str]) -> int:
    """Run the example's command; its sandboxes are reused."""
    with kept_pools():
        code: int = example.main(arguments)
    return code


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
