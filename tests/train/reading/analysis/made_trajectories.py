"""Trajectories out of text for the tests of the analysis: a token is a character, its id the character's."""

from collections.abc import Sequence
from pathlib import Path

from rocstar.engine.record.json_record import Verdict
from rocstar.engine.types import HIDDEN, Failed, Origin, Task, ToolCall, ToolResult, Trajectory
from rocstar.train.record.run_directory import records_file
from tests.fakes.trajectories import FakeRecord, FakeTurn, make_trajectory, write_step_file

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
    turns = []
    for said, answer, is_error in parts:
        is_tool = bool(answer) and is_error is not None
        call = ToolCall(name="python", arguments={"code": "1"})
        result = ToolResult(status="error" if is_error else "ok", is_error=bool(is_error), text=answer)
        turns.append(
            FakeTurn(
                ids=list(map(ord, said)),
                logprobs=[-0.5] * len(said),
                text=said,
                calls=(call,) if is_tool else (),
                results=(result,) if is_tool else (),
                answer=list(map(ord, answer)),
                origin=Origin.tool if is_tool else Origin.prompt,
            )
        )
    meta = {HIDDEN: True} if hidden else {}
    return make_trajectory(
        *turns,
        prompt=list(map(ord, "Q?")),
        task=Task(id=task, source="made", question=f"{task}?", answer="1", meta=meta),
        step=step,
        sibling=sibling,
        version=step - 1,
        reward=None if failed else 1.0,
    )


def write_step(run: Path, step: int, trajectories: Sequence[Trajectory]) -> Path:
    """Their records as those of a step of a run; the file."""
    return write_step_file(records_file(run, step), map(_record, trajectories))


def _record(one: Trajectory) -> FakeRecord:
    bucket = "failed" if isinstance(one.outcome, Failed) else "kept"
    return FakeRecord(
        trajectory=one,
        texts=[decode(one.ids[s.start : s.end].tolist()) for s in one.segments],
        verdict=Verdict(bucket=bucket, penalty_error=0.0, penalty_format=0.0, advantage=0.5),
    )
