"""Isolated execution of Python programs. Knows nothing of the engine, the learner or the kernels.

    from rocstar.sandbox import run
    print(run("print(1)").stdout)

Names are imported when they are first asked for: the zygotes and `--help` need few of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocstar.sandbox.pool.pool import SandboxPool as SandboxPool
    from rocstar.sandbox.running import run as run
    from rocstar.sandbox.types import ExecRequest as ExecRequest
    from rocstar.sandbox.types import ExecResult as ExecResult
    from rocstar.sandbox.types import Limits as Limits
    from rocstar.sandbox.types import SandboxError as SandboxError
    from rocstar.sandbox.types import SessionLost as SessionLost
    from rocstar.sandbox.types import Status as Status

_HOMES = {
    "SandboxPool": "pool.pool",
    "run": "running",
    **dict.fromkeys(
        ("ExecRequest", "ExecResult", "Limits", "SandboxError", "SessionLost", "Status"), "types"
    ),
}

__all__ = [  # noqa: RUF022  # what a reader looks for first comes first
    "run",
    "SandboxPool",
    "ExecRequest",
    "ExecResult",
    "Limits",
    "Status",
    "SandboxError",
    "SessionLost",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
