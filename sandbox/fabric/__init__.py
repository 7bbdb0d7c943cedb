"""Runs programs on many nodes that share one Redis. See docs/reference/fabric.md.

Names are imported on first use, because cli.py is also imported where Redis's client is not installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocstar.sandbox.fabric.client import RedisFabric as RedisFabric
    from rocstar.sandbox.fabric.wire import WorkerInfo as WorkerInfo
    from rocstar.sandbox.fabric.worker import RedisWorker as RedisWorker

_MODULES = {"RedisFabric": "client", "RedisWorker": "worker", "WorkerInfo": "wire"}

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
