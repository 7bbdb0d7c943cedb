"""The records of a running run: groups as they end, then the decisions on them.

    a group ends ──> ended(step, group) ──writer thread──> step_N.columns, each root behind its branches
    step is judged ──> seal(step, verdicts) ──writer thread──> step_N.index      (engine/record/)
    resume ──> found(step, task) ──> the group that a killed process had written: it is not rolled out again

One thread writes, off the event loop; at most MOST_WAITING groups wait for it. A group counts as ended when
it is written; a step waits only for the records of the step before, a checkpoint for all records of its step.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from rocstar.engine.record.columns import FrameError, decode_frame, encode_frame, frame_key
from rocstar.engine.record.files import FRAMES, INDEX, LEARNED, is_sealed, learned_files, record_files
from rocstar.engine.record.json_record import RecordError, Verdict
from rocstar.engine.record.step_file import FrameFile, FramePlace, Judged, StepFile, complete_frames, frames_offset
from rocstar.engine.types import Failed, Group, Task, Trajectory, TrajectoryKey
from rocstar.engine.waits import waiting
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.record.run_directory import TRAJECTORIES, complete_checkpoints, records_file, step_of
from rocstar.train.tasks.verify import num_answers

MOST_WAITING = 64
"""Groups that wait to be written: of 32 long trajectories each, a gigabyte."""
_NEUTRAL = {
    "checkpoint": None,
    "eval": None,
    "run": {"name", "threads", "trackers", "callbacks", "keep_records"},
    "model": {"activation_checkpointing"},
}
"""Recipe fields that do not affect a step's trajectories; None: the whole section."""

P = ParamSpec("P")
T = TypeVar("T")
Judgements = Sequence[tuple[Trajectory, Verdict]]
_Attempt = tuple[str, int]
"""Task and sibling."""
_Tree = dict[str, FramePlace]
"""The positions of a rollout and its branches, by `TrajectoryKey.branch`."""


def may_be_tried(trajectory: Trajectory) -> bool:
    """Return True if it failed with a retryable kind."""
    return isinstance(trajectory.outcome, Failed) and trajectory.outcome.retryable


def origin_of(recipe: Recipe) -> dict[str, Any]:
    """Return the origin of a journal: groups are reused only from a journal with an equal origin."""
    origin = recipe.model_dump(mode="json", exclude_none=True)
    for stage in origin.get("stages", []):
        stage.pop("steps", None)  # a run may be made longer
    for section, fields in _NEUTRAL.items():
        kept = {} if fields is None else {k: v for k, v in origin.get(section, {}).items() if k not in fields}
        origin[section] = kept
    origin["engine"] = {"deterministic": recipe.engine.deterministic}
    text = json.dumps(origin, sort_keys=True)
    return {"recipe": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()}


class Journal:
    """Invariant: a group that `ended` returned for is on the disk, whatever happens to this process; a step
    whose index is there has every record of it.

    TrainingStopped from any call: the disk takes no more.
    """

    def __init__(
        self,
        directory: Path,
        about: Mapping[str, Any],
        *,
        decode: Callable[[Sequence[int]], str],
        goes_on: bool,
        keep_steps: int = 0,
    ) -> None:
        """Nothing is read or written before the block is entered.

        Args:
            directory: the run's.
            about: see `origin_of`.
            decode: text of token ids.
            goes_on: True to reuse the files of an earlier process; else they are removed.
            keep_steps: number of steps whose records stay, besides those after the last checkpoint; 0 = all.
        """
        self._directory, self._about, self._decode = directory, dict(about), decode
        self.goes_on, self._keep_steps = goes_on, keep_steps
        self._room = asyncio.Semaphore(MOST_WAITING)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._sealing: asyncio.Future[None] | None = None
        self._files: dict[int, FrameFile] = {}
        self._places: dict[int, dict[_Attempt, _Tree]] = {}
        """The positions of each attempt, for the steps that were read."""
        self._begun: dict[tuple[int, _Attempt], _Tree] = {}
        """Branches whose root has not come yet, by the step of their file."""
        self._read: set[int] = set()

    @property
    def folder(self) -> Path:
        """Where the records of the run lie."""
        return self._directory / TRAJECTORIES

    async def __aenter__(self) -> Journal:
        if not self.goes_on:
            await self._do(self._clear)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._sealing is not None:
                await asyncio.wait([self._sealing])
                failure = self._sealing.exception()
                if failure is not None and error is None:
                    raise failure
        finally:
            await asyncio.to_thread(self._thread.shutdown)
            for file in self._files.values():
                file.__exit__(None, None, None)

    async def found(self, step: int, task: Task, *, size: int) -> Group | None:
        """Return the group of an earlier process; None if it must be rolled out.

        Groups of an unjudged step with a retryable failure are not reused: the end of the process may have
        caused it.
        """
        found = await self.attempts(step, task, size=size)
        is_whole = sum(t.fork is None for t in found) == size
        return Group(task=task, trajectories=tuple(found)) if is_whole else None

    async def attempts(self, step: int, task: Task, *, size: int) -> list[Trajectory]:
        """The siblings below `size` that `found` would take, by number, each before its branches; a group may lack
        some of them."""
        return await self._do(self._look, step, task, size) if self.goes_on else []

    async def learned(self, step: int, tasks: Mapping[str, Task]) -> list[Group] | None:
        """Return the batch of a step that an earlier process learned; None if unknown.

        Args:
            step: the learner's step.
            tasks: tasks by id; groups of other tasks are ignored.
        """
        return await self._do(self._batch, step, tasks) if self.goes_on else None

    async def ended(self, step: int, group: Group) -> None:
        """Return when the group is on the disk."""
        await self._do(self._append, step, group.trajectories)

    async def seal(self, step: int, verdicts: Judgements, *, stage: str) -> None:
        """Write the decisions of a judged step, in the background of the next step."""
        await self.settled()
        self._sealing = asyncio.ensure_future(self._do(self._seal, step, tuple(verdicts), stage))

    async def unlearned(self, step: int) -> None:
        """Remove a former recipe's records of this step, in which nothing was learned."""
        await self._do(self._forget_learned, step)

    async def settled(self) -> None:
        """Return when every step that was judged has its index."""
        if self._sealing is not None:
            await asyncio.shield(self._sealing)
            self._sealing = None

    async def _do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._room, waiting("records", "the disk", kind="records", deadline=None):
            loop = asyncio.get_running_loop()
            try:
                return await loop.run_in_executor(self._thread, lambda: work(*args, **kwargs))
            except OSError as error:
                raise TrainingStopped(
                    f"the records in {str(self.folder)!r} cannot be written "
                    f"({error.strerror}); make room and go on with --resume"
                ) from error

    # ---- in the writer's thread ----

    def _clear(self) -> None:
        """Steps without a checkpoint are not reused: their policy is lost."""
        for path in self.folder.glob("step_*"):
            if path.suffix in (FRAMES, INDEX, LEARNED):
                path.unlink()

    def _path(self, step: int) -> Path:
        return records_file(self._directory, step)

    def _known(self, step: int) -> dict[_Attempt, _Tree]:
        """Return the positions of each attempt, of an earlier process too; of two the later."""
        if step not in self._places:
            self._places[step] = {}
            for place in complete_frames(self._path(step), self._about):
                with contextlib.suppress(FrameError):  # damaged on the disk: rolled out again
                    self._note(step, frame_key(place.read()), place)
            self._begun.clear()  # the earlier process ended before their root came
        return self._places[step]

    def _note(self, step: int, key: TrajectoryKey, place: FramePlace) -> None:
        """Take in a frame of a step's file. A root completes its attempt."""
        attempt = key.task_id, key.sibling
        if key.branch:
            self._begun.setdefault((step, attempt), {})[key.branch] = place
        else:
            self._places[step][attempt] = {"": place, **self._begun.pop((step, attempt), {})}

    def _look(self, step: int, task: Task, size: int) -> list[Trajectory]:
        known, is_judged = self._known(step), is_sealed(self._path(step))
        found = []
        for tree in [known[task.id, k] for k in range(size) if (task.id, k) in known]:
            with contextlib.suppress(FrameError, RecordError):
                members = [decode_frame(place.read(), task).trajectory for place in tree.values()]
                if is_judged or not any(map(may_be_tried, members)):
                    found += sorted(members, key=lambda t: t.key.order)
        return found

    def _batch(self, step: int, tasks: Mapping[str, Task]) -> list[Group] | None:
        path = self._path(step)
        if not is_sealed(path) or frames_offset(path, self._about) is None:
            return None
        groups: dict[tuple[int, str], list[Trajectory]] = {}
        try:
            for t in StepFile(path).trajectories(tasks):
                groups.setdefault((t.key.step, t.task.id), []).append(t)
        except (RecordError, KeyError):
            return None
        return [
            Group(task=found[0].task, trajectories=tuple(sorted(found, key=lambda t: t.key.order)))
            for found in groups.values()
        ]

    def _file(self, step: int) -> FrameFile:
        if step not in self._files:
            self._known(step)
            self._files[step] = FrameFile(self._path(step), self._about)
        return self._files[step]

    def _append(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        # A killed process may leave a part: without its root, the last of each attempt, a branch is none.
        ordered = sorted(trajectories, key=lambda t: t.fork is None)
        frames = []
        for t in ordered:
            texts = [self._decode(t.ids[s.start : s.end].tolist()) for s in t.segments]
            frames.append(encode_frame(t, texts))
        places = self._file(step).append(frames)
        for t, place in zip(ordered, places, strict=True):
            self._note(step, t.key, place)

    def _seal(self, step: int, verdicts: Judgements, stage: str) -> None:
        """The trajectories of a step are mostly those of its number; others were begun under an earlier."""
        missing = [t for t, _ in verdicts if (t.task.id, t.key.sibling) not in self._known(t.key.step)]
        if missing:
            self._append(step, missing)
        judged = []
        for t, verdict in verdicts:
            attempt = t.task.id, t.key.sibling
            place = (self._known(t.key.step).get(attempt) or self._known(step)[attempt])[t.key.branch]
            answers = num_answers(t)
            judged.append(Judged(trajectory=t, verdict=verdict, num_answers=answers, place=place))
        self._file(step).seal(judged, stage=stage)
        for t, _ in verdicts:
            self._known(t.key.step).pop((t.task.id, t.key.sibling), None)
        for other in {t.key.step for t, _ in verdicts} - {step}:
            # With rl.refill numbers run ahead of the steps, so that no step may ever prune this file.
            if not self._known(other) and not is_sealed(self._path(other)):
                self._close(other)
                self._path(other).unlink(missing_ok=True)
        self._close(step)
        self._prune(step)

    def _forget_learned(self, step: int) -> None:
        for learned in learned_files(self._path(step)):
            learned.unlink(missing_ok=True)

    def _prune(self, step: int) -> None:
        """Old records go, but none that a resume would take groups from."""
        if not self._keep_steps:
            return
        saved = max(map(step_of, complete_checkpoints(self._directory)), default=0)
        for old, path in record_files(self.folder).items():
            if old <= min(step - self._keep_steps, saved):
                self._forget_learned(old)
                path.with_suffix(INDEX).unlink(missing_ok=True)
                path.unlink()
                self._close(old)

    def _close(self, step: int) -> None:
        if step in self._files:
            self._files.pop(step).__exit__(None, None, None)
