"""The trajectories, groups and step files of tests, built from turns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rocstar.engine.record.columns import encode_frame
from rocstar.engine.record.json_record import Verdict
from rocstar.engine.record.step_file import FrameFile, Judged
from rocstar.engine.types import (
    Failed,
    FinishReason,
    Fork,
    Group,
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

TASK = Task(id="t", source="s", question="q", answer="1")
LOST = Failed(kind="sandbox_lost", retryable=True, detail="")


@dataclass(frozen=True, kw_only=True)
class FakeTurn:
    """Tokens of the policy, each with a log-prob (-0.5 by default), and the tokens that answer them."""

    ids: Sequence[int] = (2,)
    logprobs: Sequence[float | None] | None = None
    text: str = ""
    stopped: bool = True
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    answer: Sequence[int] = ()
    origin: Origin = Origin.tool
    """Who wrote `answer`."""


def make_trajectory(
    *turns: FakeTurn,
    prompt: Sequence[int] = (1,),
    task: Task = TASK,
    seed: int = 0,
    step: int = 1,
    sibling: int = 0,
    version: int = 0,
    reward: float | None = 1.0,
    **fields: Any,
) -> Trajectory:
    """Return a trajectory of a prompt and these turns, with `fields` in place of what follows from them.

    No turns: one of one token. No reward: lost to a failure.
    """
    segments, made = [Segment(start=0, end=len(prompt), origin=Origin.prompt)], []
    ids, logprobs = list(prompt), [None] * len(prompt)
    for turn in turns or (FakeTurn(),):
        start, end = len(ids), len(ids) + len(turn.ids)
        segments.append(Segment(start=start, end=end, origin=Origin.policy))
        if len(turn.answer):
            segments.append(Segment(start=end, end=end + len(turn.answer), origin=turn.origin))
        ids += [*turn.ids, *turn.answer]
        logprobs += [-0.5] * len(turn.ids) if turn.logprobs is None else turn.logprobs
        logprobs += [None] * len(turn.answer)
        made.append(
            Turn(start=start, end=end, text=turn.text, stopped=turn.stopped, calls=turn.calls, results=turn.results)
        )
    plain = Trajectory(
        key=TrajectoryKey(seed=seed, step=step, task_id=task.id, sibling=sibling),
        task=task,
        ids=np.asarray(ids, np.int64),
        logprobs=logprobs,
        segments=tuple(segments),
        version_spans=(VersionSpan(start=len(prompt), end=len(ids), version=version),),
        turns=tuple(made),
        finish_reason=FinishReason.answered,
        outcome=LOST if reward is None else Scored(reward=reward, method="strict"),
    )
    return replace(plain, **fields)


def make_branch(parent: Trajectory, behind: int, number: int, *turns: FakeTurn, **fields: Any) -> Trajectory:
    """Return continuation `number` of a trajectory of turns with answers, behind its turn `behind` (from 1)."""
    shared = parent.turns[behind - 1]
    start = next((s.end for s in parent.segments if s.start == shared.end), shared.end)
    own = make_trajectory(*turns, prompt=parent.ids[:start].tolist(), task=parent.task, **fields)
    segments = tuple(s for s in parent.segments if s.end <= start)
    return replace(
        own,
        key=parent.key.behind(behind, number),
        logprobs=[*parent.logprobs[:start], *own.logprobs[start:]],
        segments=(*segments, *own.segments[1:]),
        version_spans=(VersionSpan(start=segments[0].end, end=len(own.ids), version=0),),
        turns=(*parent.turns[:behind], *own.turns),
        fork=Fork(parent=parent.key.branch, turns=behind, start=start),
    )


def plain_trajectory(*, logprobs: Sequence[float], task: str = "t", **options: Any) -> Trajectory:
    """Return one of a turn with these log-probs, for the task of this name."""
    return make_trajectory(
        FakeTurn(ids=range(len(logprobs)), logprobs=logprobs, text="<answer>1</answer>"),
        prompt=[7],
        task=replace(TASK, id=task),
        **options,
    )


def make_group(task: Task, *rewards: float | None, **options: Any) -> Group:
    """Return a group of one trajectory for each reward; `options` as in `make_trajectory`."""
    siblings = enumerate(rewards)
    made = (make_trajectory(task=task, sibling=k, reward=reward, **options) for k, reward in siblings)
    return Group(task=task, trajectories=tuple(made))


@dataclass(frozen=True, kw_only=True)
class FakeRecord:
    """A trajectory with the text of each segment, and its verdict."""

    trajectory: Trajectory
    texts: Sequence[str]
    verdict: Verdict
    num_answers: int = 1


def write_step_file(path: Path, records: Iterable[FakeRecord], *, stage: str = "one") -> Path:
    """Write the records of a judged step; return the file."""
    with FrameFile(path, {}) as file:
        judged = []
        for one in records:
            (place,) = file.append([encode_frame(one.trajectory, one.texts)])
            judged.append(
                Judged(trajectory=one.trajectory, verdict=one.verdict, num_answers=one.num_answers, place=place)
            )
        file.seal(judged, stage=stage)
    return path


def branched_trajectory(**fields: Any) -> Trajectory:
    """Return a trajectory of two sequences: 1 2 3 4 7 and 1 2 3 5 6. The policy sampled 2 3 and 7 in the first, 5 6
    in the second, where 1 2 3 is context."""
    prompt, policy, tool = Origin.prompt, Origin.policy, Origin.tool
    parts = [(0, 1, prompt), (1, 3, policy), (3, 4, tool), (4, 5, policy), (5, 8, prompt), (8, 10, policy)]
    plain = make_trajectory(FakeTurn(ids=(2, 3), answer=(4,)), FakeTurn(ids=(7,)))
    turns = (*plain.turns, replace(plain.turns[0], start=8, end=10))
    return replace(
        plain,
        ids=[1, 2, 3, 4, 7, 1, 2, 3, 5, 6],
        logprobs=[None, -0.1, -0.2, None, -0.3, None, None, None, -0.4, -0.5],
        segments=tuple(Segment(start=a, end=b, origin=origin) for a, b, origin in parts),
        version_spans=(VersionSpan(start=0, end=10, version=0),),
        turns=turns,
        starts=(0, 5),
        **fields,
    )
