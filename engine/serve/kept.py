"""The records of what was served, as a run has them: columns with an index, so that training can read them.

    begin() -> id ... keep(id, trajectories) ──writer thread──> trajectories/step_N.columns
    feedback(id, thumb) ──────────────────────────────────────> feedback.jsonl
    a file is full, or the server ends: thumbs become rewards ─> trajectories/step_N.index

One thread writes, off the event loop, and another looks up names in files that are closed. Who waits: a
conversation for its own record, after its client has its answer. What nobody has rewarded is
Failed("unjudged") and reaches no advantage. A thumb that comes after its file has its index is taken in when
the folder is closed, or opened again.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from rocstar.engine.record.columns import FrameError, decode_frame, encode_frame, frame_key, frame_told
from rocstar.engine.record.files import FRAMES, INDEX
from rocstar.engine.record.reading import RecordError, Verdict
from rocstar.engine.record.step_file import FrameFile, FramePlace, Judged, all_places
from rocstar.engine.serve.conversation import UNJUDGED
from rocstar.engine.types import Failed, Scored, Trajectory, TrajectoryKey, Turn

TRAJECTORIES, FEEDBACK = "trajectories", "feedback.jsonl"
PER_FILE = 256
"""Conversations of one file."""
STAGE = "serve"
ABOUT = {"by": STAGE}
"""What the files say of themselves."""
CONVERSATION, TEMPERATURE = "conversation", "temperature"
"""Keys of a served task's `meta`."""
OTHER_TEMPERATURE = "other_temperature"
"""The kind of failure of what was sampled otherwise than it would be learned: its log-probs are others."""
KNOWN_FILES = 64
"""Closed files whose names are remembered."""
MAX_LOOKUPS = 256
REWARDS = {"up": 1.0, "down": 0.0}

P = ParamSpec("P")
T = TypeVar("T")


class LookupsFull(Exception):
    """Too many verdicts wait to be looked up."""


@dataclass(slots=True, kw_only=True)
class _OpenFile:
    """A file that conversations write into. `pending` were begun and are not kept yet."""

    begun: int = 0
    pending: int = 0
    names: set[tuple[str, int]] = field(default_factory=set)
    """ServedConversation and choice of what it has."""
    frames: FrameFile | None = None


class KeptConversations:
    """Invariant: a conversation that `keep` returned for is on the disk; a file with an index has one record
    of every trajectory in it, with the latest thumb there was. The same question with the same seed is one.

    Args:
        folder: gets `trajectories/` and `feedback.jsonl`; goes on with what it has.
        decode: text of token ids.
        num_answers: how many answers some turns have.
        temperature: at which it would be learned.
        per_file: conversations of one file.
    """

    def __init__(
        self,
        folder: Path,
        *,
        decode: Callable[[Sequence[int]], str],
        num_answers: Callable[[Sequence[Turn]], int],
        temperature: float,
        per_file: int = PER_FILE,
    ) -> None:
        self.folder, self._decode, self._num_answers = folder, decode, num_answers
        self._temperature, self._per_file = temperature, per_file
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="served")
        self._step = 0
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="served-names")
        self._looking_up = 0
        """Lookups of names that have not ended."""
        self._names: OrderedDict[int, set[tuple[str, int]]] = OrderedDict()
        """What closed files have, of the latest that were asked for. The reader's thread has it."""
        self._open: dict[int, _OpenFile] = {}
        self._unsettled: set[int] = set()
        """Files with an index and thumbs that are not in it."""

    async def __aenter__(self) -> KeptConversations:
        await self._do(self._recover)
        self._open[self._step] = _OpenFile()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._do(self._settle, sorted({*self._open, *self._unsettled}))
        finally:
            await asyncio.to_thread(self._thread.shutdown)
            self._reader.shutdown(wait=False, cancel_futures=True)

    def begin(self) -> str:
        """The id of a conversation; `keep` or `forget` has to follow."""
        now = self._open[self._step]
        now.begun += 1
        now.pending += 1
        name = f"{self._step}-{secrets.token_hex(8)}"
        if now.begun >= self._per_file:
            self._step += 1
            self._open[self._step] = _OpenFile()
        return name

    async def keep(self, name: str, trajectories: Sequence[Trajectory]) -> None:
        """Return when the conversation is on the disk. OSError if the disk takes no more."""
        step = step_of(name)
        assert step is not None
        try:
            # At once: its client may answer before the disk does.
            self._open[step].names.update((name, t.key.sibling) for t in trajectories)
            await self._do(self._append, self._open[step], step, trajectories)
        finally:
            await self._kept(step)

    async def forget(self, name: str) -> None:
        """There is nothing to keep of it."""
        step = step_of(name)
        assert step is not None
        await self._kept(step)

    async def _kept(self, step: int) -> None:
        now = self._open[step]
        now.pending -= 1
        if step != self._step and not now.pending:
            await self._do(self._settle, [step])
            del self._open[step]

    async def feedback(self, name: str, choice: int, thumb: str, comment: str) -> bool:
        """Store a person's verdict; False where there is no such choice of a conversation. LookupsFull where
        too many wait."""
        step = step_of(name)
        if step is None or not 0 < step <= self._step:
            return False
        now = self._open.get(step)
        names = now.names if now is not None else await self._names_of(step)
        if (name, choice) not in names:
            return False
        told = {"id": name, "index": choice, "thumb": thumb, "comment": comment, "time": time.time()}
        await self._do(self._tell, told)
        if step not in self._open:  # now: it may have been closed meanwhile
            self._unsettled.add(step)
        return True

    async def _names_of(self, step: int) -> Collection[tuple[str, int]]:
        """Conversations and choices of a file that is closed. LookupsFull where too many wait."""
        if self._looking_up >= MAX_LOOKUPS:
            raise LookupsFull(f"{self._looking_up} verdicts wait for their lookup")
        self._looking_up += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader, self._find_names, step)
        finally:
            self._looking_up -= 1

    async def _do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: work(*args, **kwargs))

    # ---- in the reader's thread ----

    def _find_names(self, step: int) -> Collection[tuple[str, int]]:
        found = self._names.get(step)
        if found is None:
            found = self._names[step] = set(_names_in(self._path(step)))
            if len(self._names) > KNOWN_FILES:
                self._names.popitem(last=False)
        self._names.move_to_end(step)
        return found

    # ---- in the writer's thread ----

    def _path(self, step: int) -> Path:
        return self.folder / TRAJECTORIES / f"step_{step:06d}{FRAMES}"

    def _recover(self) -> None:
        """Take in what a server that was killed left behind; the next file is a new one."""
        (self.folder / TRAJECTORIES).mkdir(parents=True, exist_ok=True)
        steps = sorted(self._steps())
        self._settle([step for step in steps if not self._is_settled(step)])
        self._step = max(steps, default=0) + 1

    def _is_settled(self, step: int) -> bool:
        """It has its index, and no thumb is younger."""
        index, thumbs = self._path(step).with_suffix(INDEX), self.folder / FEEDBACK
        if not index.is_file():
            return False
        return not thumbs.is_file() or thumbs.stat().st_mtime_ns < index.stat().st_mtime_ns

    def _steps(self) -> Iterator[int]:
        for path in (self.folder / TRAJECTORIES).glob(f"step_*{FRAMES}"):
            if path.stem[5:].isdecimal():
                yield int(path.stem[5:])

    def _append(self, now: _OpenFile, step: int, trajectories: Sequence[Trajectory]) -> None:
        if now.frames is None:
            now.frames = FrameFile(self._path(step), ABOUT)
        now.frames.append([self._frame(self._fit(t)) for t in trajectories])

    def _frame(self, t: Trajectory) -> bytes:
        return encode_frame(t, [self._decode(t.ids[s.start : s.end].tolist()) for s in t.segments])

    def _fit(self, t: Trajectory) -> Trajectory:
        """What was sampled at another temperature has no reward: its log-probs are not those of training."""
        given = t.task.meta.get(TEMPERATURE, self._temperature)
        if given == self._temperature or not isinstance(t.outcome, Scored):
            return t
        detail = f"sampled at {given}, learned at {self._temperature}; its reward was {t.outcome.reward}"
        return replace(t, outcome=Failed(kind=OTHER_TEMPERATURE, retryable=False, detail=detail))

    def _tell(self, told: Mapping[str, Any]) -> None:
        with (self.folder / FEEDBACK).open("a", encoding="ascii") as file:
            file.write(json.dumps(told) + "\n")

    def _thumbs(self) -> dict[tuple[str, int], str]:
        """The latest thumb of each choice."""
        path = self.folder / FEEDBACK
        thumbs: dict[tuple[str, int], str] = {}
        if path.is_file():
            for line in path.read_bytes().splitlines():
                try:
                    told = json.loads(line)
                except ValueError:  # a torn last line
                    continue
                thumbs[told["id"], told["index"]] = told["thumb"]
        return thumbs

    def _settle(self, steps: Sequence[int]) -> None:
        """Take thumbs into the records of these files, and give each its index."""
        thumbs = self._thumbs()
        for step in steps:
            if (now := self._open.get(step)) is not None and now.frames is not None:
                now.frames.__exit__(None, None, None)
                now.frames = None
            if self._path(step).is_file():
                self._seal(self._path(step), thumbs)
        self._unsettled.difference_update(steps)

    def _seal(self, path: Path, thumbs: Mapping[tuple[str, int], str]) -> None:
        latest: dict[tuple[str, int], tuple[Trajectory, FramePlace]] = {}
        with FrameFile(path, ABOUT) as file:
            for place in file.places:
                try:
                    t = decode_frame(place.read()).trajectory
                except (FrameError, RecordError):  # damaged on the disk
                    continue
                latest[_name_of(t), t.key.sibling] = t, place
            found: dict[TrajectoryKey, tuple[Trajectory, FramePlace]] = {}
            for t, place in latest.values():
                rewarded = self._rewarded(t, thumbs)
                if rewarded is not t:
                    place = file.append([self._frame(rewarded)])[0]
                if t.key not in found or isinstance(rewarded.outcome, Scored):
                    found[t.key] = rewarded, place
            file.seal([self._judged(t, place) for t, place in found.values()], stage=STAGE)

    def _rewarded(self, t: Trajectory, thumbs: Mapping[tuple[str, int], str]) -> Trajectory:
        thumb = thumbs.get((_name_of(t), t.key.sibling))
        if thumb is None or (isinstance(t.outcome, Failed) and t.outcome.kind != UNJUDGED):
            return t
        outcome = Scored(reward=REWARDS[thumb], method="feedback")
        return t if t.outcome == outcome else self._fit(replace(t, outcome=outcome))

    def _judged(self, t: Trajectory, place: FramePlace) -> Judged:
        bucket = "served" if isinstance(t.outcome, Scored) else "failed"
        verdict = Verdict(bucket=bucket, penalty_error=None, penalty_format=None, advantage=None)
        answers = self._num_answers(t.turns)
        return Judged(trajectory=t, verdict=verdict, num_answers=answers, place=place)


def _names_in(path: Path) -> Iterator[tuple[str, int]]:
    """Conversation and choice of each record of a file; no token column is opened."""
    for place in all_places(path):
        try:
            frame = place.read()
            told = json.loads(frame_told(frame))
            yield str(told["task"]["meta"][CONVERSATION]), frame_key(frame).sibling
        except (FrameError, RecordError, KeyError, TypeError, ValueError):  # damaged, or not of a server
            continue


def _name_of(t: Trajectory) -> str:
    """The conversation that it is of."""
    return str(t.task.meta.get(CONVERSATION))


def step_of(name: str) -> int | None:
    """The file of a conversation, from its id; None where that is none of ours."""
    number, _, rest = name.partition("-")
    return int(number) if number.isdecimal() and len(number) < 12 and rest else None
