"""The workers that are alive: members of a sorted set, scored by the end of their lease on Redis's clock."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A live worker. capacity: programs it runs at a time."""

    name: str
    capacity: int
    flavours: tuple[str, ...]


def encode_worker(info: WorkerInfo) -> str:
    return json.dumps(asdict(info))


def decode_workers(members: Iterable[bytes]) -> list[WorkerInfo]:
    """Members that are not of this version's making are left out."""
    workers = []
    for member in members:
        try:
            fields = json.loads(member)
            workers.append(WorkerInfo(**{**fields, "flavours": tuple(fields["flavours"])}))
        except (KeyError, TypeError, ValueError):
            continue  # another version's, which this one could not use either
    return workers
