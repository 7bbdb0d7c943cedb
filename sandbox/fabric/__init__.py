"""Runs programs on many nodes that share one Redis. See docs/reference/fabric.md.

Names are imported on first use, because cli.py is also imported where Redis's client is not installed.
"""

from typing import TYPE_CHECKING

from rocstar.sandbox import lazy_names

if TYPE_CHECKING:
    from rocstar.sandbox.fabric.client import RedisFabric as RedisFabric
    from rocstar.sandbox.fabric.wire import WorkerInfo as WorkerInfo
    from rocstar.sandbox.fabric.worker import RedisWorker as RedisWorker

_MODULES = {"RedisFabric": "client", "RedisWorker": "worker", "WorkerInfo": "wire"}

__all__ = [*_MODULES]
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
