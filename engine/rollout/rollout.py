"""One trajectory from task to outcome: the only multi-turn loop.

    prompt -> [policy turn -> tool calls -> sandbox -> tool suffix] ... -> final turn -> judge
              [policy turn -> counterpart -> its results, or the user's next message] ...

A trajectory waits for its turn, its tools and its judge; only its group waits for it. Token ids are appended
and never re-made from text. Infrastructure failures (InferenceError, SandboxError, ToolFailure, an expired
clock) end in Failed, which has no reward. The resources of its tools are released when the last turn ends,
before the judge, in every case. Its clock runs from its first grant (clock.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rocstar.engine.chat.chat import ChatFormat
from rocstar.engine.inference.base import (
    GenerationBuilder,
    Inference,
    InferenceError,
    Sampling,
    StopReason,
    TellsTokens,
)
from rocstar.engine.progress.progress import attempting, turn_ended
from rocstar.engine.rollout.clock import TrajectoryClock
from rocstar.engine.seeds import stream_of
from rocstar.engine.tools.box import ToolBox, Tools
from rocstar.engine.tools.results import cut_middle
from rocstar.engine.tools.tool import ToolFailure
from rocstar.engine.types import (
    Attempt,
    Failed,
    FinishReason,
    Origin,
    Outcome,
    Segment,
    Span,
    Task,
    ToolResult,
    Trajectory,
    TrajectoryKey,
    TrajectoryTimes,
    Turn,
    TurnTimes,
    VersionSpan,
)
from rocstar.sandbox.types import SandboxError

TRAJECTORY_TIMEOUT, POLICY_TIMEOUT = "trajectory_timeout", "policy_timeout"
"""Kinds of Failed for a trajectory that outlives its clock; the second only if the policy was at work."""
MAX_QUIET_SHARE = 0.1
"""Share of the time limit. A longer time without a token or a tool result may be an outage of engine or
sandbox."""


class Judge(Protocol):
    """Scores an attempt: a reward, or Failed if scoring failed. `deadline` is a `loop.time()`."""

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome: ...


class Counterpart(Protocol):
    """Answers the policy in the place of the agent's tools, where a task brings its own other side."""

    async def answer(
        self, task: Task, turns: Sequence[Turn], *, deadline: float | None
    ) -> tuple[ToolResult, ...] | str | None:
        """Return the answer to the last of `turns`, which the policy ended itself: one result per call; the
        user's next message; or None if the attempt is over.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    """max_response_tokens counts every token behind the prompt, tool results included; timeout_s counts from
    the first grant on."""

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
    counterpart: Counterpart | None = None
    """Answers in the place of `tools`, where a task brings its own other side."""
    functions: Callable[[Task], Sequence[Mapping[str, Any]]] | None = None
    """Tools that a task's prompt shows in place of its own; a turn that calls them is then the answer."""
    prompt: Callable[[Task], list[int]] | None = None
    """The ids of a task's prompt, where they are not those of its question and context."""
    listens: bool = False
    """Each token is a sign of life of the policy; otherwise the end of a turn is."""


@dataclass(slots=True, kw_only=True)
class _Draft(GenerationBuilder):
    """A trajectory being written. Appending is the only operation."""

    segments: list[Segment] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    written: list[Span] = field(default_factory=list)
    """When each of the turns was."""
    judged: Span | None = None

    def times(self, clock: TrajectoryClock) -> TrajectoryTimes:
        """All that was timed, now that it is over."""
        return TrajectoryTimes(
            began=clock.began,
            ended_s=clock.now_s,
            granted_s=clock.granted_s,
            turns=tuple(
                TurnTimes(written=written, calls=tuple(result.ran for result in turn.results))
                for turn, written in zip(self.turns, self.written, strict=True)
            ),
            judged=self.judged,
        )

    def append(self, ids: list[int], origin: Origin) -> None:
        start = len(self.ids)
        self.add(ids, [None] * len(ids))
        self.segments.append(Segment(start=start, end=len(self.ids), origin=origin))


async def run_trajectory(
    agent: Agent, task: Task, key: TrajectoryKey, *, granted: Callable[[], None] = lambda: None
) -> Trajectory:
    """Roll out one attempt. Never raises for a failure of inference, sandbox or judge: that is data.

    granted: called once, when its clock starts, or when it ends without.
    """
    request_id = str(key)
    with attempting(request_id), TrajectoryClock(agent.limits.timeout_s, granted) as clock:
        draft = _Draft()
        finish = FinishReason.aborted
        agent.inference.on_grant(request_id, clock.start)
        if agent.listens and isinstance(agent.inference, TellsTokens):
            agent.inference.on_tokens(request_id, lambda place, token: clock.sign())
        try:
            async with agent.tools.open(seed=stream_of(key, purpose="tools")) as tools:
                finish = await _converse(agent, tools, task, key, draft, clock)
            attempt = Attempt(task=task, turns=tuple(draft.turns), is_truncated=finish is not FinishReason.answered)
            start_s = clock.now_s
            async with clock.waiting(request_id, "the judge", kind="judge"):
                outcome = await agent.judge.score(attempt, deadline=clock.latest)
            draft.judged = Span(start_s, clock.now_s)
        except (InferenceError, SandboxError, ToolFailure) as error:
            outcome = Failed(kind=error.kind, retryable=error.retryable, detail=str(error))
        except TimeoutError:
            outcome = _late(clock, at_work=finish is FinishReason.aborted)
        finally:
            agent.inference.release(request_id)
        return Trajectory(
            key=key,
            task=task,
            ids=draft.ids,
            logprobs=draft.logprobs,
            segments=tuple(draft.segments),
            version_spans=tuple(VersionSpan(start=a, end=b, version=v) for a, b, v in draft.spans),
            turns=tuple(draft.turns),
            finish_reason=finish,
            outcome=outcome,
            times=draft.times(clock),
        )


def _late(clock: TrajectoryClock, *, at_work: bool) -> Failed:
    """Return the failure of a trajectory whose wait ended by a deadline. at_work: not at the judge."""
    kind = "deadline"
    if clock.is_over:
        is_quiet = clock.quiet_s > MAX_QUIET_SHARE * clock.timeout_s
        kind = POLICY_TIMEOUT if at_work and not is_quiet else TRAJECTORY_TIMEOUT
    return Failed(kind=kind, retryable=True, detail=f"not done within {clock.timeout_s} s of its grant")


async def _converse(
    agent: Agent, tools: Tools, task: Task, key: TrajectoryKey, draft: _Draft, clock: TrajectoryClock
) -> FinishReason:
    """Turn by turn until the policy answers or a limit ends it; returns why it ended."""
    functions = None if agent.functions is None else agent.functions(task)
    if agent.prompt is None:
        prompt_ids = agent.chat.prompt_ids(task.question, task.context, functions)
    else:
        prompt_ids = agent.prompt(task)
    draft.append(prompt_ids, Origin.prompt)
    end = len(draft.ids) + agent.limits.max_response_tokens
    token_stream, who = stream_of(key), str(key)
    while True:
        start, start_s = len(draft.ids), clock.now_s
        async with clock.waiting(who, "the policy", kind="generate"):
            generation = await agent.inference.generate(
                draft.ids,
                max_new_tokens=end - start,
                stop_ids=agent.chat.stop_ids,
                sampling=agent.sampling,
                seed=token_stream,
                request_id=who,
                deadline=clock.latest,
            )
        clock.start()  # at the latest, if the engine reported no grant
        clock.sign()
        start = len(draft.ids)
        draft.add_generation(generation)
        draft.segments.append(Segment(start=start, end=len(draft.ids), origin=Origin.policy))
        turn_ended(who, len(generation.ids))
        text = agent.chat.turn_text(generation.ids)
        stopped = generation.finish is StopReason.stop
        calls = agent.chat.calls(text, functions) if stopped else ()
        turn = Turn(start=start, end=len(draft.ids), text=text, stopped=stopped, calls=calls, form=agent.chat.form)
        draft.turns.append(turn)
        draft.written.append(Span(start_s, clock.now_s))
        if generation.finish is StopReason.aborted:
            raise InferenceError("aborted", f"turn {len(draft.turns)} was aborted", retryable=True)
        if not stopped:
            return FinishReason.max_tokens
        if agent.counterpart is None and (not calls or functions is not None):
            return FinishReason.answered
        at_end = len(draft.turns) >= agent.limits.max_turns
        if agent.counterpart is None and at_end:
            return FinishReason.max_turns
        async with clock.waiting(who, "its tools", kind="tool"):
            reply: tuple[ToolResult, ...] | str | None
            if agent.counterpart is not None:
                reply = await agent.counterpart.answer(task, draft.turns, deadline=clock.latest)
            else:
                reply = await tools.execute(calls, turn=len(draft.turns), deadline=clock.latest)
        clock.sign()
        if reply is None:
            return FinishReason.answered
        if at_end and isinstance(reply, tuple):
            return FinishReason.max_turns
        if isinstance(reply, tuple):
            draft.turns[-1] = replace(turn, results=reply)
        suffix = _suffix(agent, reply)
        # The last segment is never a tool's: with no room left for a turn the suffix is not appended.
        if len(draft.ids) + len(suffix) >= end:
            return FinishReason.tool_budget
        draft.append(suffix, Origin.prompt if isinstance(reply, str) else Origin.tool)


def _suffix(agent: Agent, reply: tuple[ToolResult, ...] | str) -> list[int]:
    """Ids between two turns of the policy: the user's next message, or results cut to their limit."""
    if isinstance(reply, str):
        return agent.chat.user_suffix_ids(reply)
    limit = agent.limits.max_tool_tokens
    texts = [cut_middle(result.text, agent.chat.tokenizer, limit) for result in reply]
    return agent.chat.tool_suffix_ids(texts)
