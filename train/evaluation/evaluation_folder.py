"""The folder of an evaluation: each attempt as a record, and the numbers computed from the records.

    attempts/NAME.jsonl   trajectory records of a set (engine/record/), in the order of its tasks
    results.json          all numbers of all sets (results.py): no time, no path, the same bytes every time
    manifest.json         model, data, settings (provenance.py), times and status
    config.toml           the recipe, unless the folder is part of a run

    AttemptsFile.append(groups) ──> attempts/NAME.jsonl.partial   whole groups, as they end; synced
    AttemptsFile.settle()       ──> attempts/NAME.jsonl           in the order of the tasks; atomic

A killed process loses only the append in progress. A resumed one truncates a torn line, keeps the tasks with
all their attempts, and runs the others. A run keeps its evaluation at step N in evaluations/step_N.
"""

import asyncio
import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstar.engine.record.files import whole_file
from rocstar.engine.record.json_record import VERSION, RecordError, Verdict, from_record, to_record
from rocstar.engine.record.reading import read_records
from rocstar.engine.types import Group, Scored, Task, Trajectory
from rocstar.train.evaluation import results
from rocstar.train.evaluation.sets import EvaluationSet
from rocstar.train.groups.selection import FAILED, penalty_of
from rocstar.train.record.learned_questions import FOUND, Learned
from rocstar.train.record.run_directory import replace_text
from rocstar.train.tasks.verify import num_answers

ATTEMPTS, RESULTS = "attempts", "results.json"
WITHHELD = "# The licence does not allow the questions to be shown: do not publish these files.\n"


@dataclass(frozen=True, slots=True)
class EvaluationFolder:
    """The paths of an evaluation's files."""

    directory: Path

    @property
    def results(self) -> Path:
        return self.directory / RESULTS

    def attempts(self, name: str) -> Path:
        """Return the path of a set's records."""
        return self.directory / ATTEMPTS / f"{name}.jsonl"

    def withhold(self, name: str) -> None:
        """Exclude the records of a hidden set from git commits of this folder."""
        path, line = self.directory / ATTEMPTS / ".gitignore", f"{name}.jsonl*\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        known = path.read_text(encoding="utf-8") if path.exists() else WITHHELD
        if line not in known:
            path.write_text(known + line, encoding="utf-8")

    def files(self, names: Sequence[str]) -> list[str]:
        """Return the files of a finished evaluation of these sets, relative to the folder."""
        return [RESULTS, *(f"{ATTEMPTS}/{name}.jsonl" for name in names)]


def run_folder(run_dir: Path, step: int) -> Path:
    """Return the folder of a run's evaluation at `step`."""
    return run_dir / "evaluations" / f"step_{step:06d}"


def replace_folder(made: Path, target: Path) -> None:
    """Replace `target` by a finished folder."""
    former = target.with_name(f"{target.name}.former")
    shutil.rmtree(former, ignore_errors=True)
    if target.exists():
        target.rename(former)
    made.rename(target)
    shutil.rmtree(former, ignore_errors=True)


Contaminants = Callable[[EvaluationSet], Mapping[str, Any] | None]
"""Returns the questions of a set that the policy may have learned: `questions` by id with their rule, or
None."""


def recipe_overlap(learned: Learned, *, left_out: bool) -> Contaminants:
    """Return the overlap of each set with the tasks and conversations of the recipe. `left_out`: the recipe
    that trained the policy excluded these sets."""
    return lambda chosen: learned.found(chosen.name, chosen.tasks, left_out=left_out)


def stored_overlap(chosen: EvaluationSet, *, sets: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the overlap of a set as stored in earlier results."""
    overlap = sets.get(chosen.name, {}).get("contamination")
    return None if overlap is None else {key: overlap[key] for key in FOUND}


def write_numbers(
    sets: Sequence[EvaluationSet],
    folder: EvaluationFolder,
    *,
    seed: int,
    step: int,
    contaminants: Contaminants | None = None,
) -> dict[str, results.Evaluation]:
    """Write results.json from the records. Raises as `evaluate_sets`."""
    sets_json, found = numbers(sets, folder, contaminants)
    replace_text(folder.results, results.results_text(sets_json, seed=seed, step=step))
    return found


def numbers(
    sets: Sequence[EvaluationSet], folder: EvaluationFolder, contaminants: Contaminants | None
) -> tuple[dict[str, Any], dict[str, results.Evaluation]]:
    """Compute the sets of results.json, and their summaries, from the records."""
    sets_json, found = {}, {}
    for chosen in sets:
        path = folder.attempts(chosen.name)
        questions = results.group_by_question(map(from_record, read_records(path)), chosen)
        if not any(question.scored for question in questions.values()):
            raise results.unscored_error(list(map(from_record, read_records(path))))
        contaminated = contaminants(chosen) if contaminants else None
        sets_json[chosen.name] = results.set_results(questions, chosen, contaminated)
        found[chosen.name] = results.summarize(questions, sets_json[chosen.name])
    return sets_json, found


EVALUATED = "evaluated"
"""The bucket of a scored attempt: no learner receives it."""

Decode = Callable[[Sequence[int]], str]


def evaluation_verdict(trajectory: Trajectory) -> Verdict:
    """Return the attempt's penalties under RoC, for readers; nothing is sampled."""
    if not isinstance(trajectory.outcome, Scored):
        return FAILED
    penalty = penalty_of(trajectory)
    return Verdict(bucket=EVALUATED, penalty_error=penalty.error, penalty_format=penalty.format, advantage=None)


@dataclass(frozen=True, slots=True)
class _Place:
    """The position of a record in the partial file."""

    begin: int
    end: int
    task_id: str
    sibling: int


class AttemptsFile:
    """The attempts at one set: `k` of each of `tasks`.

    Invariant: the k records of each task in `done` are on disk, even if this process is killed. After
    `settle` the file has k records of each task, by task and sibling. Its bytes depend neither on the order
    in which groups ended nor on interruptions.
    """

    def __init__(self, path: Path, tasks: Sequence[Task], *, k: int) -> None:
        """Continue the file at `path`. RecordError if it holds other data."""
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
        """Drop the other tasks that are done: they will be run again."""
        self._rewrite(self.done & task_ids)

    async def append(self, groups: Sequence[Group], decode: Decode) -> None:
        """Write whole groups and return when they are on disk."""
        lines = []
        for trajectory in (t for group in groups for t in group.trajectories):
            record = to_record(
                dataclasses.replace(trajectory, times=None),  # equal attempts give equal bytes
                evaluation_verdict(trajectory),
                stage="eval",
                num_answers=num_answers(trajectory),
                decode=decode,
            )
            lines.append(json.dumps(record, separators=(",", ":")).encode("ascii") + b"\n")
        async with self._writing:
            await asyncio.to_thread(_append, self._partial, b"".join(lines))
            self.done.update(group.task.id for group in groups)

    def settle(self) -> None:
        """Sort the attempts by task. All of them must be done."""
        if self.is_settled:
            return
        missing = self._order.keys() - self.done
        assert not missing, f"{len(missing)} tasks are not done"
        self._rewrite(self.done)
        self._partial.replace(self.path)

    def _recovered(self) -> set[str]:
        """Keep the records of the tasks that are done, without a torn or incomplete tail; return these."""
        if not self._partial.exists():
            self._partial.touch()
            return set()
        count: dict[str, set[int]] = {}
        for place in _places(self._partial):
            count.setdefault(place.task_id, set()).add(place.sibling)
        done = {name for name, siblings in count.items() if len(siblings) == self._k and name in self._order}
        self._rewrite(done)
        return done

    def _rewrite(self, kept: set[str]) -> None:
        """Write the records of these tasks in order, each once, atomically."""
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
    """Yield the records of a file up to a torn end. RecordError for another line before it."""
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
                torn = True  # the last line may be incomplete, or zeros on some disks
                continue
            yield _Place(begin, begin + len(line), record["task"]["id"], record["sibling"])
            begin += len(line)
