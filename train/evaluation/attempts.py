"""The attempts at a set on disk, group by group while they are made, in the tasks' order when all are there.

    append(groups) ──> attempts/NAME.jsonl.partial   whole groups, in the order in which they ended; synced
    settle()       ──> attempts/NAME.jsonl           in the order of the tasks; appears whole

Who waits: whoever made a group, until it lies on the disk. A process that is killed at any point loses what
it was appending; who goes on cuts a torn line, keeps the tasks with all their attempts, and makes the others.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstar.engine.record.files import whole_file
from rocstar.engine.record.reading import VERSION, RecordError, Verdict, to_record
from rocstar.engine.types import Group, Scored, Task, Trajectory
from rocstar.train.groups.selection import FAILED, penalty_of
from rocstar.train.tasks.verify import num_answers

EVALUATED = "evaluated"
"""The bucket of an attempt that was scored: no learner saw it."""

Decode = Callable[[Sequence[int]], str]


def record_line(trajectory: Trajectory, decode: Decode) -> bytes:
    """The record of an attempt as one line; the same attempt gives the same bytes, so when it happened is
    left out."""
    record = to_record(
        dataclasses.replace(trajectory, times=None),
        _verdict(trajectory),
        stage="eval",
        num_answers=num_answers(trajectory.turns),
        decode=decode,
    )
    return json.dumps(record, separators=(",", ":")).encode("ascii") + b"\n"


def verdict_fields(trajectory: Trajectory) -> dict[str, Any]:
    """What of a record hangs on the outcome besides the outcome."""
    verdict = _verdict(trajectory)
    penalty = None
    if verdict.penalty_error is not None:
        penalty = {"error": verdict.penalty_error, "format": verdict.penalty_format}
    return {"penalty": penalty, "decision": {"kept": False, "reason": verdict.bucket}}


def _verdict(trajectory: Trajectory) -> Verdict:
    """What RoC would hold against the attempt, for a reader; nothing is drawn."""
    if not isinstance(trajectory.outcome, Scored):
        return FAILED
    penalty = penalty_of(trajectory)
    return Verdict(
        bucket=EVALUATED, penalty_error=penalty.error, penalty_format=penalty.format, advantage=None
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a record lies in the partial file."""

    begin: int
    end: int
    task_id: str
    sibling: int


class AttemptsFile:
    """The attempts at one set: `k` of each of `tasks`.

    Invariant: `done` are the tasks whose k records are on the disk, whatever happens to this process. After
    `settle` the file has k records of every task, by task and sibling, and its bytes do not depend on the
    order in which groups ended, nor on how often the work was killed.
    """

    def __init__(self, path: Path, tasks: Sequence[Task], *, k: int) -> None:
        """Go on with what lies at `path`. RecordError for a file of something else."""
        self.path, self._k = path, k
        self._partial = path.with_name(f"{path.name}.partial")
        self._order = {task.id: place for place, task in enumerate(tasks)}
        self._writing = asyncio.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.done: set[str] = set(self._order) if path.exists() else self._recovered()

    @property
    def is_settled(self) -> bool:
        return self.path.exists()

    def keep(self, task_ids: set[str]) -> None:
        """Forget the other tasks that are done: they will be made again."""
        self._rewrite(self.done & task_ids)

    async def append(self, groups: Sequence[Group], decode: Decode) -> None:
        """Return when whole groups lie on the disk."""
        data = b"".join(record_line(t, decode) for group in groups for t in group.trajectories)
        async with self._writing:
            await asyncio.to_thread(_append, self._partial, data)
            self.done.update(group.task.id for group in groups)

    def settle(self) -> None:
        """Put the attempts into the order of the tasks; all of them are done."""
        if self.is_settled:
            return
        missing = self._order.keys() - self.done
        assert not missing, f"{len(missing)} tasks are not done"
        self._rewrite(self.done)
        self._partial.replace(self.path)

    def _recovered(self) -> set[str]:
        """The tasks that were done; what is behind a torn line, or not whole, is cut off."""
        if not self._partial.exists():
            self._partial.touch()
            return set()
        with self._partial.open("rb+") as file:
            whole = max((place.end for place in _places(self._partial)), default=0)
            file.truncate(whole)
        count: dict[str, set[int]] = {}
        for place in _places(self._partial):
            count.setdefault(place.task_id, set()).add(place.sibling)
        done = {name for name, siblings in count.items() if len(siblings) == self._k and name in self._order}
        self._rewrite(done)
        return done

    def _rewrite(self, kept: set[str]) -> None:
        """The records of these tasks in order, each once; the file holds the old ones or the new."""
        places = {(p.task_id, p.sibling): p for p in _places(self._partial) if p.task_id in kept}
        ordered = sorted(places.values(), key=lambda p: (self._order[p.task_id], p.sibling))
        with self._partial.open("rb") as source, whole_file(self._partial) as file:
            for place in ordered:
                source.seek(place.begin)
                file.write(source.read(place.end - place.begin))
        self.done = kept


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _places(path: Path) -> Iterator[_Place]:
    """The records of a file up to a torn end. RecordError for a line before it that is none."""
    begin, torn = 0, False
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if torn:
                raise RecordError(f"{path}:{number - 1}: not a trajectory record of version {VERSION}")
            try:
                record = json.loads(line)
                is_record = line.endswith(b"\n") and record.get("v") == VERSION
            except (ValueError, AttributeError, RecursionError):
                is_record = False
            if not is_record:
                torn = True  # the last line may be half of one, and on some disks zeros
                continue
            yield _Place(begin, begin + len(line), record["task"]["id"], record["sibling"])
            begin += len(line)
