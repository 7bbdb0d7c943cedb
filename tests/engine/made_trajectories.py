"""Trajectories out of turns, for tests and benchmarks: who uses them says what each turn has, and no places.

Nothing of it draws or decodes: ids, texts and log-probs are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rocstar.engine.record.columns import encode_frame
from rocstar.engine.record.json_record import Verdict
from rocstar.engine.record.step_file import FrameFile, Judged
from rocstar.engine.types import (
    FinishReason,
    Origin,
    Outcome,
    Scored,
    Segment,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryKey,
    TrajectoryTimes,
    Turn,
    VersionSpan,
)


@dataclass(frozen=True, kw_only=True)
class MadeTurn:
    """What the policy writes in a turn, and what comes behind it.

    Attributes:
        ids: of its tokens, each with one of `logprobs`.
        answer: ids of what the environment says to it, which `origin` wrote; none ends the trajectory.
    """

    ids: Sequence[int]
    logprobs: Sequence[float]
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    answer: Sequence[int] = ()
    origin: Origin = Origin.tool


@dataclass(frozen=True, kw_only=True)
class MadeRecord:
    """A trajectory with the text of each segment and what became of it."""

    trajectory: Trajectory
    texts: Sequence[str]
    verdict: Verdict
    num_answers: int = 1


def spoken_trajectory(
    prompt: Sequence[int],
    turns: Iterable[MadeTurn],
    *,
    task: Task,
    step: int = 1,
    sibling: int = 0,
    seed: int = 0,
    version: int = 0,
    finish_reason: FinishReason = FinishReason.answered,
    outcome: Outcome | None = None,
    times: TrajectoryTimes | None = None,
) -> Trajectory:
    """A trajectory of a prompt and these turns; `outcome` is by default a reward of 1."""
    segments, told = [Segment(start=0, end=len(prompt), origin=Origin.prompt)], []
    ids: list[Any] = [prompt]
    logprobs: list[Any] = [np.full(len(prompt), np.nan)]
    at = len(prompt)
    for turn in turns:
        end = at + len(turn.ids)
        behind = end + len(turn.answer)
        segments.append(Segment(start=at, end=end, origin=Origin.policy))
        told.append(
            Turn(start=at, end=end, text=turn.text, stopped=True, calls=turn.calls, results=turn.results)
        )
        ids += [turn.ids, turn.answer]
        logprobs += [turn.logprobs, np.full(len(turn.answer), np.nan)]
        if behind > end:
            segments.append(Segment(start=end, end=behind, origin=turn.origin))
        at = behind
    return Trajectory(
        key=TrajectoryKey(seed=seed, step=step, task_id=task.id, sibling=sibling),
        task=task,
        ids=np.concatenate([np.asarray(part, np.int64) for part in ids]),
        logprobs=np.concatenate([np.asarray(part, float) for part in logprobs]),
        segments=tuple(segments),
        version_spans=(VersionSpan(start=len(prompt), end=at, version=version),),
        turns=tuple(told),
        finish_reason=finish_reason,
        outcome=Scored(reward=1.0, method="m") if outcome is None else outcome,
        times=times,
    )


def write_step_file(path: Path, records: Iterable[MadeRecord], *, stage: str = "one") -> Path:
    """Write them as the records of a step that was judged; the file."""
    with FrameFile(path, {}) as file:
        judged = []
        for one in records:
            (place,) = file.append([encode_frame(one.trajectory, one.texts)])
            judged.append(
                Judged(
                    trajectory=one.trajectory, verdict=one.verdict, num_answers=one.num_answers, place=place
                )
            )
        file.seal(judged, stage=stage)
    return path
