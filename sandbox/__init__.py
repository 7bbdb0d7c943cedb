"""Isolated execution of Python programs. Independent of the engine, the learner and the kernels.

    from rocstar.sandbox import run
    print(run("print(1)").stdout)

Names are imported on first use: zygotes and `--help` need few of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocstar.sandbox.pool.pool import SandboxPool as SandboxPool
    from rocstar.sandbox.sync import run as run
    from rocstar.sandbox.types import ExecRequest as ExecRequest
    from rocstar.sandbox.types import ExecResult as ExecResult
    from rocstar.sandbox.types import Limits as Limits
    from rocstar.sandbox.types import SandboxError as SandboxError
    from rocstar.sandbox.types import SessionLost as SessionLost
    from rocstar.sandbox.types import Status as Status

_MODULES = {
    "run": "sync",
    "SandboxPool": "pool.pool",
    **dict.fromkeys(("ExecRequest", "ExecResult", "Limits", "Status", "SandboxError", "SessionLost"), "types"),
}

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
