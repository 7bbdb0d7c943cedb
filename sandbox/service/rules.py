"""What a service accepts: its flavours and the largest values that it takes."""

from dataclasses import dataclass, field
from typing import Any

from rocstar.sandbox.child.import_scan import select_flavour
from rocstar.sandbox.types import DEFAULT_LIMITS, LIMIT_BOUNDS, Limits

AUTO = "auto"
"""The flavour of a call that names none: chosen by what the program imports."""

MAX_DEADLINE_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rules:
    """What the service accepts. Known by its identity: a call finds its models by it (see models.py).

    Attributes:
        flavours: Those there are.
        max_calls_per_batch: The most calls of one batch.
        max_wall_s: The longest time limit of a call, in seconds.
        max_memory_bytes: The largest memory limit of a call.
        default_limits: The limits of a call that names none.
    """

    flavours: tuple[str, ...]
    max_calls_per_batch: int = 65_536
    max_wall_s: float = 3600.0
    max_memory_bytes: int = 64 << 30
    default_limits: Limits = field(default=DEFAULT_LIMITS)

    def bounds_of(self, limit: str) -> tuple[Any, Any]:
        """The least and the most of a field of Limits."""
        low, high = LIMIT_BOUNDS[limit]
        most = {"wall_s": self.max_wall_s, "memory_bytes": self.max_memory_bytes}
        return low, min(high, most.get(limit, high))

    def choose(self, code: str) -> str:
        """The flavour that suits a program."""
        return select_flavour(code, self.flavours)
