"""Records of served conversations, in the format of a run, so that training can read them.

    begin() -> id ... keep(id, trajectories) ──writer thread──> trajectories/step_N.columns
    feedback(id, thumb) ──────────────────────────────────────> feedback.jsonl
    a file is full, or the server stops: thumbs become rewards ─> trajectories/step_N.index

One thread writes, outside the event loop, and another finds ids in closed files. A conversation waits for its
own record, after its client has the response. A conversation without a reward is Failed("unjudged") and gets
no advantage. A thumb that arrives after its file was indexed is applied when the folder is closed or opened
again.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from rocstar.engine.record.columns import FrameError, decode_frame, encode_frame, frame_json, frame_key
from rocstar.engine.record.files import FRAMES, INDEX
from rocstar.engine.record.json_record import RecordError, Verdict
from rocstar.engine.record.step_file import FrameFile, FramePlace, Judged, complete_frames
from rocstar.engine.serve.conversation import UNJUDGED
from rocstar.engine.types import Failed, Scored, Trajectory, TrajectoryKey
from rocstar.sandbox.http.errors import RequestError

TRAJECTORIES, FEEDBACK = "trajectories", "feedback.jsonl"
PER_FILE = 256
"""Conversations of one file."""

STAGE = "serve"
ABOUT = {"by": STAGE}
"""The metadata in the files."""

CONVERSATION, TEMPERATURE = "conversation", "temperature"
"""Keys of a served task's `meta`."""

OTHER_TEMPERATURE = "other_temperature"
"""The kind of failure of a conversation sampled at another temperature than in training, whose log-probs
differ."""

KNOWN_FILES = 64
"""Closed files whose names are remembered."""

MAX_LOOKUPS = 256
REWARDS = {"up": 1.0, "down": 0.0}
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class _OpenFile:
    """A file that conversations write into. `pending` were begun and are not kept yet."""

    begun: int = 0
    pending: int = 0
    names: set[tuple[str, int]] = field(default_factory=set)
    """The conversation and choice of each record."""
    frames: FrameFile | None = None


class ConversationStore:
    """Invariant: a conversation is on disk when `keep` returns; an indexed file has one record per
    trajectory, with its latest thumb. Equal questions with equal seeds are one trajectory.

        Args:
            folder: the folder for `trajectories/` and `feedback.jsonl`; existing files are extended.
            decode: returns the text of token ids.
            num_answers: returns the number of answers in a trajectory.
            temperature: the temperature of training.
            per_file: the number of conversations per file.
    """

    def __init__(
        self,
        folder: Path,
        *,
        decode: Callable[[Sequence[int]], str],
        num_answers: Callable[[Trajectory], int],
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
        # Only the reader's thread calls it.
        self._names = lru_cache(maxsize=KNOWN_FILES)(lambda step: read_names(self._path(step)))
        self._open: dict[int, _OpenFile] = {}
        self._unsettled: set[int] = set()
        """Files with an index and thumbs that are not in it."""

    async def __aenter__(self) -> ConversationStore:
        await self._run_in_writer(self._recover)
        self._open[self._step] = _OpenFile()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._run_in_writer(self._settle, sorted({*self._open, *self._unsettled}))
        finally:
            await asyncio.to_thread(self._thread.shutdown)
            self._reader.shutdown(wait=False, cancel_futures=True)

    def begin(self) -> str:
        """Return the id of a conversation; `keep` has to follow."""
        now = self._open[self._step]
        now.begun += 1
        now.pending += 1
        name = f"{self._step}-{secrets.token_hex(8)}"
        if now.begun >= self._per_file:
            self._step += 1
            self._open[self._step] = _OpenFile()
        return name

    async def keep(self, name: str, trajectories: Sequence[Trajectory]) -> None:
        """Return when the trajectories, if any, are on the disk. OSError if the disk takes no more."""
        step = parse_step(name)
        assert step is not None
        now = self._open[step]
        try:
            if trajectories:
                # before the write, because the client may send feedback earlier
                now.names.update((name, t.key.sibling) for t in trajectories)
                await self._run_in_writer(self._append, now, step, trajectories)
        finally:
            now.pending -= 1
            if step != self._step and not now.pending:
                await self._run_in_writer(self._settle, [step])
                del self._open[step]

    async def feedback(self, name: str, choice: int, thumb: str, comment: str) -> bool:
        """Store the feedback of a person. Return False if the conversation has no such choice. Raises
        RequestError if too many lookups wait."""
        step = parse_step(name)
        if step is None or not 0 < step <= self._step:
            return False
        now = self._open.get(step)
        names = now.names if now is not None else await self._look_up(step)
        if (name, choice) not in names:
            return False
        payload = {"id": name, "index": choice, "thumb": thumb, "comment": comment, "time": time.time()}
        await self._run_in_writer(self._append_feedback, payload)
        if step not in self._open:  # now: it may have been closed meanwhile
            self._unsettled.add(step)
        return True

    async def _look_up(self, step: int) -> set[tuple[str, int]]:
        """Return the conversation and choice of each record of a closed file. Raises RequestError."""
        if self._looking_up >= MAX_LOOKUPS:
            raise RequestError(
                f"{self._looking_up} verdicts wait for their lookup; ask again later", status=429, kind="queue_full"
            )
        self._looking_up += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader, self._names, step)
        finally:
            self._looking_up -= 1

    async def _run_in_writer(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    # ---- in the writer's thread ----

    def _path(self, step: int) -> Path:
        return self.folder / TRAJECTORIES / f"step_{step:06d}{FRAMES}"

    def _recover(self) -> None:
        """Index the files of a server that was killed; the next file is a new one."""
        (self.folder / TRAJECTORIES).mkdir(parents=True, exist_ok=True)
        files = (self.folder / TRAJECTORIES).glob(f"step_*{FRAMES}")
        steps = sorted(int(path.stem[5:]) for path in files if path.stem[5:].isdecimal())
        # An index that is newer than all thumbs has them.
        thumbs = self.folder / FEEDBACK
        changed_ns = thumbs.stat().st_mtime_ns if thumbs.is_file() else 0
        indices = {step: self._path(step).with_suffix(INDEX) for step in steps}
        self._settle(
            [step for step, index in indices.items() if not index.is_file() or index.stat().st_mtime_ns <= changed_ns]
        )
        self._step = max(steps, default=0) + 1

    def _append(self, now: _OpenFile, step: int, trajectories: Sequence[Trajectory]) -> None:
        if now.frames is None:
            now.frames = FrameFile(self._path(step), ABOUT)
        now.frames.append([self._frame(self._check_temperature(t)) for t in trajectories])

    def _frame(self, t: Trajectory) -> bytes:
        return encode_frame(t, [self._decode(t.ids[s.start : s.end].tolist()) for s in t.segments])

    def _check_temperature(self, t: Trajectory) -> Trajectory:
        """Remove the reward of a trajectory sampled at another temperature: its log-probs are not those of
        training."""
        given = t.task.meta.get(TEMPERATURE, self._temperature)
        if given == self._temperature or not isinstance(t.outcome, Scored):
            return t
        detail = f"sampled at {given}, learned at {self._temperature}; its reward was {t.outcome.reward}"
        return replace(t, outcome=Failed(kind=OTHER_TEMPERATURE, retryable=False, detail=detail))

    def _append_feedback(self, payload: Mapping[str, Any]) -> None:
        with (self.folder / FEEDBACK).open("a", encoding="ascii") as file:
            file.write(json.dumps(payload) + "\n")

    def _thumbs(self) -> dict[tuple[str, int], str]:
        """The latest thumb of each choice."""
        path = self.folder / FEEDBACK
        thumbs: dict[tuple[str, int], str] = {}
        if path.is_file():
            for line in path.read_bytes().splitlines():
                try:
                    payload = json.loads(line)
                except ValueError:  # a torn last line
                    continue
                thumbs[payload["id"], payload["index"]] = payload["thumb"]
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
                latest[_conversation_of(t), t.key.sibling] = t, place
            found: dict[TrajectoryKey, tuple[Trajectory, FramePlace]] = {}
            for t, place in latest.values():
                rewarded = self._rewarded(t, thumbs)
                if rewarded is not t:
                    place = file.append([self._frame(rewarded)])[0]
                if t.key not in found or isinstance(rewarded.outcome, Scored):
                    found[t.key] = rewarded, place
            judged = []
            for t, place in found.values():
                bucket = "served" if isinstance(t.outcome, Scored) else "failed"
                verdict = Verdict(bucket=bucket, penalty_error=None, penalty_format=None, advantage=None)
                answers = self._num_answers(t)
                judged.append(Judged(trajectory=t, verdict=verdict, num_answers=answers, place=place))
            file.seal(judged, stage=STAGE)

    def _rewarded(self, t: Trajectory, thumbs: Mapping[tuple[str, int], str]) -> Trajectory:
        thumb = thumbs.get((_conversation_of(t), t.key.sibling))
        if thumb is None or (isinstance(t.outcome, Failed) and t.outcome.kind != UNJUDGED):
            return t
        outcome = Scored(reward=REWARDS[thumb], method="feedback")
        return t if t.outcome == outcome else self._check_temperature(replace(t, outcome=outcome))


def read_names(path: Path) -> set[tuple[str, int]]:
    """Return the conversation and choice of each record of a file; no token column is opened."""
    found = set()
    for place in complete_frames(path):
        try:
            frame = place.read()
            payload = json.loads(frame_json(frame))
            found.add((str(payload["task"]["meta"][CONVERSATION]), frame_key(frame).sibling))
        except (FrameError, RecordError, KeyError, TypeError, ValueError):  # damaged, or not of a server
            continue
    return found


def _conversation_of(t: Trajectory) -> str:
    return str(t.task.meta.get(CONVERSATION))


def parse_step(name: str) -> int | None:
    """Return the file number in a conversation's id, or None for an invalid id."""
    number, _, rest = name.partition("-")
    return int(number) if number.isdecimal() and len(number) < 12 and rest else None
