"""The workers that are alive: members of a sorted set, scored by the end of their lease on Redis's clock."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from rocstar.sandbox.child.flavours import FLAVOURS

MOST_CAPACITY = 1 << 16
"""Programs at a time, of the largest machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A live worker. capacity: programs it runs at a time."""

    name: str
    capacity: int
    flavours: tuple[str, ...]


def encode_worker(info: WorkerInfo) -> str:
    return json.dumps(asdict(info))


def decode_workers(members: Iterable[bytes]) -> list[WorkerInfo]:
    """Members that are not of this version's making are left out, and flavours that it does not know."""
    workers = []
    for member in members:
        try:
            fields = json.loads(member)
            known = tuple(name for name in FLAVOURS if name in list(fields["flavours"]))
            worker = WorkerInfo(**{**fields, "flavours": known})
            if known and type(worker.name) is str and type(worker.capacity) is int:
                workers += [worker] if 1 <= worker.capacity <= MOST_CAPACITY else []
        except (LookupError, RecursionError, TypeError, ValueError):
            continue  # another version's, which this one could not use either
    return workers
