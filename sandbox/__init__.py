"""Isolated execution of Python programs. Independent of the engine, the learner and the kernels.

    from rocstar.sandbox import run
    print(run("print(1)").stdout)

Names are imported on first use: zygotes and `--help` need few of them.
"""

import sys
from collections.abc import Callable, Mapping
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


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that imports a name on its first use.

    modules: the module of each name, relative to the package.
    """
    names = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        names[name] = getattr(import_module(f"{package}.{modules[name]}"), name)
        return names[name]

    return get, lambda: sorted({*names, *modules})


__getattr__, __dir__ = lazy_names(__name__, _MODULES)
