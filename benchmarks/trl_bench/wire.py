"""How a benchmark's child process is driven: one line in, one JSON line out. Standard library only, for the
peer's interpreter runs it too.

    parent: {"do": "update"}\n ──> child: works, then prints  @@ {"wall_s": ..., ...}\n
"""

from __future__ import annotations

import json
import resource
import sys
import time
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


class Stopwatch:
    """Wall and CPU seconds of this process since its creation."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """Both, and the most memory this process ever had."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {
            "wall_s": time.perf_counter() - self._wall,
            "cpu_s": time.process_time() - self._cpu,
            "peak_bytes": peak,
        }
