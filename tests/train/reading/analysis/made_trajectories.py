"""Trajectories out of text for the tests of the analysis: a token is a character, its id the character's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rocstar.engine.record.columns import encode_frame
from rocstar.engine.record.plain import Verdict
from rocstar.engine.record.step_file import FrameFile, Judged
from rocstar.engine.types import (
    HIDDEN,
    Failed,
    FinishReason,
    Origin,
    Scored,
    Segment,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryKey,
    Turn,
    VersionSpan,
)
from rocstar.train.record.run_directory import records_file

CALL = '<tool_call>{"name": "python", "arguments": {"code": "1"}}</tool_call>'
TOOL = Origin.tool


def decode(ids: Sequence[int]) -> str:
    """Text of ids that are characters."""
    return "".join(map(chr, ids))


def told(
    *parts: tuple[str, str, bool | None],
    task: str = "t",
    sibling: int = 0,
    failed: bool = False,
    hidden: bool = False,
    step: int = 1,
) -> Trajectory:
    """A trajectory of parts (what the policy wrote, what answered it, whether that was an error); None: the
    answer is the user's, and no tool's. An empty answer ends it."""
    ids, segments, turns, logprobs = list(map(ord, "Q?")), [], [], [None, None]
    segments.append(Segment(start=0, end=2, origin=Origin.prompt))
    for said, answer, is_error in parts:
        start = len(ids)
        ids += map(ord, said)
        logprobs += [-0.5] * len(said)
        segments.append(Segment(start=start, end=len(ids), origin=Origin.policy))
        is_tool = bool(answer) and is_error is not None
        call = ToolCall(name="python", arguments={"code": "1"})
        result = ToolResult(status="error" if is_error else "ok", is_error=bool(is_error), text=answer)
        turns.append(
            Turn(
                start=start,
                end=len(ids),
                text=said,
                stopped=True,
                calls=(call,) if is_tool else (),
                results=(result,) if is_tool else (),
            )
        )
        if answer:
            start = len(ids)
            ids += map(ord, answer)
            logprobs += [None] * len(answer)
            origin = Origin.tool if is_tool else Origin.prompt
            segments.append(Segment(start=start, end=len(ids), origin=origin))
    return Trajectory(
        key=TrajectoryKey(seed=0, step=step, task_id=task, sibling=sibling),
        task=Task(
            id=task, source="made", question=f"{task}?", answer="1", meta={HIDDEN: True} if hidden else {}
        ),
        ids=ids,
        logprobs=logprobs,
        segments=tuple(segments),
        version_spans=(VersionSpan(start=2, end=len(ids), version=step - 1),),
        turns=tuple(turns),
        finish_reason=FinishReason.answered,
        outcome=Failed(kind="lost", retryable=True, detail="")
        if failed
        else Scored(reward=1.0, method="exact"),
    )


def write_step(run: Path, step: int, trajectories: Sequence[Trajectory]) -> Path:
    """Their records as those of a step of a run; the file."""
    path = records_file(run, step)
    with FrameFile(path, {}) as file:
        judged = []
        for one in trajectories:
            bucket = "failed" if isinstance(one.outcome, Failed) else "kept"
            verdict = Verdict(bucket=bucket, penalty_error=0.0, penalty_format=0.0, advantage=0.5)
            texts = [decode(one.ids[s.start : s.end].tolist()) for s in one.segments]
            (place,) = file.append([encode_frame(one, texts)])
            judged.append(Judged(trajectory=one, verdict=verdict, num_answers=1, place=place))
        file.seal(judged, stage="one")
    return path
