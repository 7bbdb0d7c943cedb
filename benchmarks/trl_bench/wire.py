"""How a benchmark's child process is driven: one line in, one JSON line out. Standard library only, for the
peer's interpreter runs it too.

    parent: {"do": "update"}\n ──> child: works, then prints  @@ {"wall_s": ..., ...}\n
"""

from __future__ import annotations

import json
import sys
from typing import Any

MARK = "@@ "
"""Begins a line of the protocol; everything else that a child prints is chatter."""


def answer(**values: Any) -> None:
    """Send the parent one result."""
    print(MARK + json.dumps(values), flush=True)


def question() -> dict[str, Any] | None:
    """The parent's next command; None when it has hung up."""
    line = sys.stdin.readline()
    return json.loads(line) if line else None
