"""Programs on many nodes, joined by one Redis. See docs/fabric.md."""

from rocstar.sandbox.fabric.batch import as_batch
from rocstar.sandbox.fabric.client import RedisFabric
from rocstar.sandbox.fabric.worker import RedisWorker
from rocstar.sandbox.fabric.workers import WorkerInfo

__all__ = ["RedisFabric", "RedisWorker", "WorkerInfo", "as_batch"]
