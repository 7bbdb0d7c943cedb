"""The service's flavours and value limits."""

from dataclasses import dataclass, field
from typing import Any

from rocstar.sandbox.child.import_scan import select_flavour
from rocstar.sandbox.types import DEFAULT_LIMITS, LIMIT_BOUNDS, Limits

AUTO = "auto"
"""The flavour of a call that names none: selected by the program's imports."""

MAX_DEADLINE_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServiceLimits:
    """The limits of a service. Compared by identity, because the dialects cache their models per object.

    Attributes:
        flavours: The available flavours.
        max_calls_per_batch: The maximum number of calls in a batch.
        max_wall_s: The maximum time limit of a call, in seconds.
        max_memory_bytes: The maximum memory limit of a call.
        default_limits: The limits of a call that gives none.
    """

    flavours: tuple[str, ...]
    max_calls_per_batch: int = 65_536
    max_wall_s: float = 3600.0
    max_memory_bytes: int = 64 << 30
    default_limits: Limits = field(default=DEFAULT_LIMITS)

    def limit_bounds(self, limit: str) -> tuple[Any, Any]:
        """The least and the most of a field of Limits."""
        low, high = LIMIT_BOUNDS[limit]
        most = {"wall_s": self.max_wall_s, "memory_bytes": self.max_memory_bytes}
        return low, min(high, most.get(limit, high))

    def select_flavour(self, code: str) -> str:
        """The flavour that suits a program."""
        return select_flavour(code, self.flavours)
