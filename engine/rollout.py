"""One trajectory from task to outcome: the only multi-turn loop.

    prompt -> [policy turn -> tool calls -> sandbox -> tool suffix] ... -> final turn -> judge

Who waits: the trajectory waits for its own turn, its own tools and its own judge; nobody waits for it but
its group. Token ids are appended and never re-made from text. Our failures (InferenceError, SandboxError,
a passed deadline) end in Failed, which has no reward. What its tools hold is let go when the last turn ends,
before the judge, and in whatever way it ends.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from rocstar.engine.chat import ChatFormat
from rocstar.engine.inference.base import Generation, Inference, InferenceError, Sampling, StopReason
from rocstar.engine.progress import turn_ended
from rocstar.engine.seeds import stream_of
from rocstar.engine.toolcalls import parse_tool_calls
from rocstar.engine.tools import ToolBox, Tools, cut_middle
from rocstar.engine.types import (
    Failed,
    FinishReason,
    Origin,
    Outcome,
    Segment,
    Task,
    Trajectory,
    TrajectoryKey,
    Turn,
    VersionSpan,
)
from rocstar.engine.waits import waiting
from rocstar.sandbox.types import SandboxError


class Judge(Protocol):
    """Scores what the policy wrote against the task's truth."""

    async def score(
        self, policy_text: str, task: Task, *, truncated: bool, deadline: float | None
    ) -> Outcome: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    """max_response_tokens counts every token behind the prompt, tool results included."""

    max_response_tokens: int
    max_turns: int
    max_tool_tokens: int
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Everything a trajectory needs: the policy, how it talks, its tools, its judge, its limits."""

    inference: Inference
    chat: ChatFormat
    tools: ToolBox
    judge: Judge
    limits: RolloutLimits
    sampling: Sampling


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A trajectory being written. Appending is the only operation."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def append(self, ids: list[int], origin: Origin) -> None:
        start = len(self.ids)
        self.ids += ids
        self.logprobs += [None] * len(ids)
        self.segments.append(Segment(start=start, end=len(self.ids), origin=origin))

    def append_generation(self, generation: Generation) -> None:
        start = len(self.ids)
        self.ids += generation.ids
        self.logprobs += generation.logprobs
        self.segments.append(Segment(start=start, end=len(self.ids), origin=Origin.policy))
        self.spans += [
            VersionSpan(start=start + a, end=start + b, version=v) for a, b, v in generation.version_spans
        ]


async def run_trajectory(agent: Agent, task: Task, key: TrajectoryKey) -> Trajectory:
    """Roll out one attempt. Never raises for a failure of inference, sandbox or judge: that is data."""
    draft = _Draft()
    request_id = str(key)
    deadline = asyncio.get_running_loop().time() + agent.limits.timeout_s
    finish = FinishReason.aborted
    try:
        async with agent.tools.open(seed=stream_of(key, purpose="tools")) as tools:
            finish = await _converse(agent, tools, task, key, draft, deadline)
        text = "\n".join(turn.text for turn in draft.turns)
        truncated = finish is not FinishReason.answered
        async with waiting(request_id, "the judge", kind="judge", deadline=deadline):
            outcome = await agent.judge.score(text, task, truncated=truncated, deadline=deadline)
    except (InferenceError, SandboxError) as error:
        outcome = Failed(kind=error.kind, retryable=error.retryable, detail=str(error))
    except TimeoutError:
        outcome = Failed(
            kind="deadline", retryable=True, detail=f"not done within {agent.limits.timeout_s} s"
        )
    finally:
        agent.inference.release(request_id)
    return Trajectory(
        key=key,
        task=task,
        ids=tuple(draft.ids),
        logprobs=tuple(draft.logprobs),
        segments=tuple(draft.segments),
        version_spans=tuple(draft.spans),
        turns=tuple(draft.turns),
        finish_reason=finish,
        outcome=outcome,
    )


async def _converse(
    agent: Agent, tools: Tools, task: Task, key: TrajectoryKey, draft: _Draft, deadline: float
) -> FinishReason:
    """Turn by turn until the policy answers or a limit ends it; returns why it ended."""
    draft.append(agent.chat.prompt_ids(task.question, task.context), Origin.prompt)
    end = len(draft.ids) + agent.limits.max_response_tokens
    token_stream, who = stream_of(key), str(key)
    while True:
        start = len(draft.ids)
        async with waiting(who, "the policy", kind="generate", deadline=deadline):
            generation = await agent.inference.generate(
                draft.ids,
                max_new_tokens=end - start,
                stop_ids=agent.chat.stop_ids,
                sampling=agent.sampling,
                seed=token_stream,
                request_id=who,
                deadline=deadline,
            )
        draft.append_generation(generation)
        turn_ended(who, len(generation.ids))
        text = agent.chat.turn_text(generation.ids)
        stopped = generation.finish is StopReason.stop
        calls = parse_tool_calls(text) if stopped else ()
        turn = Turn(start=start, end=len(draft.ids), text=text, stopped=stopped, calls=calls)
        draft.turns.append(turn)
        if generation.finish is StopReason.aborted:
            raise InferenceError("aborted", f"turn {len(draft.turns)} was aborted", retryable=True)
        if not stopped:
            return FinishReason.max_tokens
        if not calls:
            return FinishReason.answered
        if len(draft.turns) >= agent.limits.max_turns:
            return FinishReason.max_turns
        async with waiting(who, "its tools", kind="tool", deadline=deadline):
            results = await tools.execute(calls, turn=len(draft.turns), deadline=deadline)
        draft.turns[-1] = Turn(
            start=start, end=turn.end, text=text, stopped=stopped, calls=calls, results=results
        )
        limit = agent.limits.max_tool_tokens
        texts = [cut_middle(result.text, agent.chat.tokenizer, limit) for result in results]
        suffix = agent.chat.tool_suffix_ids(texts)
        # The last segment is never a tool's: with no room left for a turn the suffix is not appended.
        if len(draft.ids) + len(suffix) >= end:
            return FinishReason.tool_budget
        draft.append(suffix, Origin.tool)
