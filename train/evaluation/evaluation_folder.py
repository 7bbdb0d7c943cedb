"""An evaluation is a folder: every attempt as a record, and the numbers made of these records.

    attempts/NAME.jsonl   trajectory records of a set (engine/record/), in the order of its tasks
    results.json          all numbers of all sets (results.py): no time, no path, the same bytes every time
    manifest.json         what was evaluated and how (evidence.py), when, and how it ended
    config.toml           the recipe, where the folder stands alone

    evaluate_sets: per set  AttemptsFile ──tasks not done yet──> attempts ──group by group──> AttemptsFile
                   then     records ──> results.json

Who waits: a group for its records to lie on the disk; the sets one after the other. A run keeps the folder of
its evaluation at step N as evaluations/step_N.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rocstar.engine.record.files import whole_file
from rocstar.engine.record.reading import VERSION, RecordError, Verdict, from_record, read_records, to_record
from rocstar.engine.types import Group, Scored, Task, Trajectory
from rocstar.train.evaluation.results import (
    Evaluation,
    read_questions,
    results_text,
    set_results,
    summarize,
    unscored_error,
)
from rocstar.train.evaluation.sets import EvaluationSet
from rocstar.train.groups.selection import FAILED, penalty_of
from rocstar.train.record.learned_questions import FOUND, Learned
from rocstar.train.record.run_directory import replace_text
from rocstar.train.tasks.verify import num_answers

ATTEMPTS, RESULTS = "attempts", "results.json"
WITHHELD = "# Their licence asks that questions are not shown: keep these files to yourself.\n"


@dataclass(frozen=True, slots=True)
class EvaluationFolder:
    """The places of an evaluation's files."""

    directory: Path

    @property
    def results(self) -> Path:
        return self.directory / RESULTS

    def attempts(self, name: str) -> Path:
        """The records of a set."""
        return self.directory / ATTEMPTS / f"{name}.jsonl"

    def withhold(self, name: str) -> None:
        """Keep the records of a set that is not to be shown out of every git commit of this folder."""
        path, line = self.directory / ATTEMPTS / ".gitignore", f"{name}.jsonl*\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        known = path.read_text(encoding="utf-8") if path.exists() else WITHHELD
        if line not in known:
            path.write_text(known + line, encoding="utf-8")

    def files(self, names: Sequence[str]) -> list[str]:
        """What a finished evaluation of these sets holds, by place in the folder."""
        return [RESULTS, *(f"{ATTEMPTS}/{name}.jsonl" for name in names)]


def run_folder(run_dir: Path, step: int) -> Path:
    """Where a run keeps its evaluation at `step`."""
    return run_dir / "evaluations" / f"step_{step:06d}"


def replace_folder(made: Path, target: Path) -> None:
    """Put a finished folder in the place of the one that was there."""
    former = target.with_name(f"{target.name}.former")
    shutil.rmtree(former, ignore_errors=True)
    if target.exists():
        target.rename(former)
    made.rename(target)
    shutil.rmtree(former, ignore_errors=True)


class Contaminants(Protocol):
    """What of a set the policy may have learned: `questions` by id with their rule; None = not known."""

    def found(self, chosen: EvaluationSet) -> Mapping[str, Any] | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeOverlap:
    """What the tasks and conversations of the recipe have of it."""

    learned: Learned
    left_out: bool
    """The recipe that trained it holds these very sets out."""

    def found(self, chosen: EvaluationSet) -> Mapping[str, Any] | None:
        return self.learned.found(chosen.name, chosen.tasks, left_out=self.left_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOverlap:
    """What the results of an earlier time have of it."""

    sets: Mapping[str, Any]

    def found(self, chosen: EvaluationSet) -> Mapping[str, Any] | None:
        told = self.sets.get(chosen.name, {}).get("contamination")
        return None if told is None else {key: told[key] for key in FOUND}


def write_numbers(
    sets: Sequence[EvaluationSet],
    folder: EvaluationFolder,
    *,
    seed: int,
    step: int,
    contaminants: Contaminants | None = None,
) -> dict[str, Evaluation]:
    """Make results.json of the records, which are there. Raises as `evaluate_sets`."""
    told, found = numbers(sets, folder, contaminants)
    replace_text(folder.results, results_text(told, seed=seed, step=step))
    return found


def numbers(
    sets: Sequence[EvaluationSet], folder: EvaluationFolder, contaminants: Contaminants | None
) -> tuple[dict[str, Any], dict[str, Evaluation]]:
    """What the records give: the sets of results.json, and what people are shown."""
    told, found = {}, {}
    for chosen in sets:
        questions = read_questions(folder.attempts(chosen.name), chosen)
        if not any(question.scored for question in questions.values()):
            raise unscored_error([from_record(r) for r in read_records(folder.attempts(chosen.name))])
        contaminated = contaminants.found(chosen) if contaminants else None
        told[chosen.name] = set_results(questions, chosen, contaminated)
        found[chosen.name] = summarize(questions, k=chosen.samples)
    return told, found


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


def outcome_fields(trajectory: Trajectory) -> dict[str, Any]:
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
