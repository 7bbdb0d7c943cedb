"""Programs on many nodes, joined by one Redis. See docs/reference/fabric.md.

Names are imported when they are first asked for: cli.py is read where Redis's client is missing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocstar.sandbox.fabric.batch import as_batch as as_batch
    from rocstar.sandbox.fabric.client import RedisFabric as RedisFabric
    from rocstar.sandbox.fabric.worker import RedisWorker as RedisWorker
    from rocstar.sandbox.fabric.workers import WorkerInfo as WorkerInfo

_HOMES = {"RedisFabric": "client", "RedisWorker": "worker", "WorkerInfo": "workers", "as_batch": "batch"}

__all__ = ["RedisFabric", "RedisWorker", "WorkerInfo", "as_batch"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
