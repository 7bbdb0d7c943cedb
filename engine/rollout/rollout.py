"""One trajectory from task to outcome: the only multi-turn loop.

    prompt -> [policy turn -> tool calls -> sandbox -> tool suffix] ... -> final turn -> judge
              [policy turn -> counterpart -> its results, or the user's next message] ...
               Policy.sample  Agent.reply -> Draft.answer                                  grade

A trajectory waits for its turn, its tools and its judge; only its group waits for it. Token ids are appended
and never re-made from text. Infrastructure failures (InferenceError, SandboxError, ToolFailure, AgentFailure, an
expired clock) end in Failed, which has no reward. The resources of its tools are released when the last turn ends,
before the judge, in every case. Its clock runs from its first grant (clock.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
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
from rocstar.engine.rollout.environment import EnvironmentPlace, OpenEpisode, place_of
from rocstar.engine.seeds import stream_of
from rocstar.engine.tools.box import ToolBox, Tools
from rocstar.engine.tools.results import cut_middle
from rocstar.engine.tools.tool import ToolFailure
from rocstar.engine.types import (
    Attempt,
    Failed,
    FinishReason,
    Fork,
    Given,
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
ENDED_EARLY = "ended_early"
"""The kind of a Failed that was ended because its outcome could change nothing."""
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


class AgentFailure(Exception):
    """A foreign agent failed: the trajectory becomes Failed and has no reward."""

    retryable = False

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class Harness(Protocol):
    """Runs a foreign agent in the place of the turn loop."""

    async def converse(self, agent: Agent, draft: Draft) -> None:
        """Let it work on the draft's task until it ends or a limit of `agent` is reached.

        Write its samples and its result into the draft, and why it ended.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy under the limits of an attempt: what samples its turns, and how it talks."""

    inference: Inference
    chat: ChatFormat
    limits: RolloutLimits
    sampling: Sampling
    functions: Callable[[Task], Sequence[Mapping[str, Any]]] | None = None
    """Tools that a task's prompt shows in place of its own; a turn that calls them is then the answer."""
    prompt: Callable[[Task], list[int]] | None = None
    """The ids of a task's prompt, where they are not those of its question and context."""
    listens: bool = False
    """Each token is a sign of life of the policy; otherwise the end of a turn is."""

    async def sample(self, draft: Draft) -> Turn | None:
        """Append the policy's next turn to the attempt.

        Return the turn if it must be answered (`Draft.answer`). Return None if the attempt is over, for the
        reason `draft.finish`: this turn is an answer, or a limit ended it.

        Raises:
            InferenceError: the engine failed.
            TimeoutError: the clock of the attempt is over.
        """
        if draft.finish is not None:
            return None
        draft.end_if_unneeded()
        functions, episode = None if self.functions is None else self.functions(draft.task), draft.episode
        shown = functions if episode is None else episode.functions
        if not draft.ids:
            ids = self.prompt(draft.task) if self.prompt and episode is None else None
            question = draft.task.question if episode is None else episode.question
            ids = self.chat.prompt_ids(question, draft.task.context, shown) if ids is None else ids
            draft.append(ids, Origin.prompt)
        start, start_s = len(draft.ids), draft.clock.now_s
        async with draft.clock.waiting(draft.name, "the policy", kind="generate"):
            generation = await self.inference.generate(
                draft.ids,
                max_new_tokens=draft.room,
                stop_ids=self.chat.stop_ids,
                sampling=self.sampling,
                seed=stream_of(draft.key),
                request_id=draft.name,
                deadline=draft.clock.latest,
            )
        draft.clock.start()  # at the latest, if the engine reported no grant
        draft.clock.sign()
        if not generation.ids:
            draft.end_if_unneeded()
        draft.add_generation(generation)
        draft.segments.append(Segment(start=start, end=len(draft.ids), origin=Origin.policy))
        turn_ended(draft.name, len(generation.ids))
        text = self.chat.turn_text(generation.ids)
        stopped = generation.finish is StopReason.stop
        calls = self.chat.calls(text, shown) if stopped else ()
        turn = Turn(start=start, end=len(draft.ids), text=text, stopped=stopped, calls=calls, form=self.chat.form)
        draft.turns.append(turn)
        draft.written.append(Span(start_s, draft.clock.now_s))
        if generation.finish is StopReason.aborted:
            draft.end_if_unneeded()
            raise InferenceError("aborted", f"turn {len(draft.turns)} was aborted", retryable=True)
        if not stopped:
            draft.finish = FinishReason.max_tokens
        elif not draft.is_dialogue and (not calls or functions is not None):
            draft.finish = FinishReason.answered
        elif not draft.is_dialogue and draft.at_last_turn and episode is None:
            draft.finish = FinishReason.max_turns
        return turn if draft.finish is None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent(Policy):
    """Everything a trajectory needs: the policy, its tools, its judge, its limits."""

    tools: ToolBox
    judge: Judge
    counterpart: Counterpart | None = None
    """Answers in the place of `tools`, where a task brings its own other side."""
    harness: Harness | None = None
    """Runs a foreign agent in the place of the turn loop, unless a task set brings a `counterpart` or `functions`."""
    environments: Mapping[str, EnvironmentPlace] = field(default_factory=dict)
    """By name: where the tasks of environments are attempted, with other tools and limits."""

    @contextlib.asynccontextmanager
    async def attempt(
        self,
        task: Task,
        key: TrajectoryKey,
        *,
        granted: Callable[[], None] = lambda: None,
        begun: Callable[[Draft], None] = lambda draft: None,
    ) -> AsyncIterator[Draft]:
        """Yield a new attempt. A failure of inference, sandbox or judge in the block is its outcome.

        granted: called once, when its clock starts, or when it ends without. begun: called with it at once.
        """
        request_id = str(key)
        with (
            attempting(request_id, is_branch=bool(key.branch)),
            TrajectoryClock(self.limits.timeout_s, granted) as clock,
        ):
            draft = Draft(policy=self, task=task, key=key, clock=clock, is_dialogue=self.counterpart is not None)
            begun(draft)
            self.inference.on_grant(request_id, clock.start)
            if self.listens and isinstance(self.inference, TellsTokens):
                self.inference.on_tokens(request_id, lambda *token: clock.sign())
            try:
                yield draft
            except (InferenceError, SandboxError, ToolFailure, AgentFailure) as error:
                draft.outcome = Failed(kind=error.kind, retryable=error.retryable, detail=str(error))
            except TimeoutError:
                draft.outcome = _late(clock, at_work=draft.finish is None)
            finally:
                self.inference.release(request_id)
                draft.ended_s = clock.now_s

    async def reply(self, draft: Draft, tools: Tools) -> tuple[ToolResult, ...] | str | None:
        """Return the answer to the last turn: the results of its calls by `tools`, or the counterpart's.

        TimeoutError when the clock of the attempt is over.
        """
        async with draft.clock.waiting(draft.name, "its tools", kind="tool"):
            if self.counterpart is not None:
                return await self.counterpart.answer(draft.task, draft.turns, deadline=draft.clock.latest)
            return await tools.execute(draft.turns[-1].calls, turn=len(draft.turns), deadline=draft.clock.latest)


@dataclass(slots=True, kw_only=True)
class Draft(GenerationBuilder):
    """An attempt being written. The turn loop appends tokens and never changes them.

    Attributes:
        turns: those of the policy so far.
        finish: why the last turn was the last; None before.
        outcome: of the judge, or the failure that ended it.
    """

    policy: Policy
    task: Task
    key: TrajectoryKey
    clock: TrajectoryClock
    is_dialogue: bool
    """A turn without a call is answered too."""
    segments: list[Segment] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    written: list[Span] = field(default_factory=list)
    """When each of the turns was."""
    judged: Span | None = None
    ended_s: float = 0.0
    finish: FinishReason | None = None
    outcome: Outcome | None = None
    starts: Sequence[int] = (0,)
    given: Given | None = None
    """The result of a foreign agent or an environment."""
    episode: OpenEpisode | None = None
    """The prompt and tools of a task of an environment. The calls of its last turn are answered, too."""
    fork: Fork | None = None
    num_forks: int = 0
    """On the path to here, this attempt's own and its parents'."""
    is_unneeded: bool = False
    """The policy writes no more turns for it."""

    @property
    def name(self) -> str:
        """The id of its requests."""
        return str(self.key)

    @property
    def room(self) -> int:
        """Tokens that may still be appended."""
        return self.segments[0].end + self.policy.limits.max_response_tokens - len(self.ids)

    @property
    def at_last_turn(self) -> bool:
        return len(self.turns) >= self.policy.limits.max_turns

    @property
    def tool_seed(self) -> int:
        """The seed of its tools, for `ToolBox.open`."""
        return stream_of(self.key, purpose="tools")

    async def end(self) -> None:
        """Let it end, Failed as ENDED_EARLY, with the tokens of the present turn so far. A tool at work ends
        first; an answer that is complete is scored."""
        self.is_unneeded = True
        await self.policy.inference.abort(self.name)

    def end_if_unneeded(self) -> None:
        if self.is_unneeded:
            self.finish = FinishReason.ended_early
            raise InferenceError(ENDED_EARLY, "its outcome cannot change which siblings are kept", retryable=False)

    def append(self, ids: list[int], origin: Origin) -> None:
        start = len(self.ids)
        self.add(ids, [None] * len(ids))
        self.segments.append(Segment(start=start, end=len(self.ids), origin=origin))

    def follow(self, trunk: Draft) -> None:
        """Begin with all of `trunk` so far, of which no time is this attempt's."""
        self.ids, self.logprobs, self.spans = [*trunk.ids], [*trunk.logprobs], [*trunk.spans]
        self.segments, self.cached_tokens = [*trunk.segments], trunk.cached_tokens
        for turn in trunk.turns:
            self.turns.append(replace(turn, results=tuple(replace(result, ran=None) for result in turn.results)))
            self.written.append(Span(0.0, 0.0))
        self.num_forks = trunk.num_forks
        self.fork = Fork(parent=trunk.key.branch, turns=len(trunk.turns), start=len(trunk.ids))

    def answer(self, reply: tuple[ToolResult, ...] | str | None) -> None:
        """Answer the last turn: a result for each of its calls, or the user's next message; None ends it."""
        self.clock.sign()
        if reply is None:
            self.finish = FinishReason.answered
            return
        chat, limits = self.policy.chat, self.policy.limits
        if isinstance(reply, str):
            suffix = chat.user_suffix_ids(reply)
        elif self.at_last_turn and self.episode is None:
            self.finish = FinishReason.max_turns
            return
        else:
            self.turns[-1] = replace(self.turns[-1], results=reply)
            texts = [cut_middle(result.text, chat.tokenizer, limits.max_tool_tokens) for result in reply]
            suffix = chat.tool_suffix_ids(texts)
        # The last segment is never a tool's: with no room left for a turn the suffix is not appended.
        if self.episode is not None and (self.episode.is_over or self.at_last_turn):
            self.finish = FinishReason.answered if self.episode.is_over else FinishReason.max_turns
        elif len(suffix) >= self.room:
            self.finish = FinishReason.tool_budget
        else:
            self.append(suffix, Origin.prompt if isinstance(reply, str) else Origin.tool)

    def trajectory(self) -> Trajectory:
        """Return the attempt as a trajectory, when it is over and graded."""
        assert self.outcome is not None, f"{self.name} has no outcome: await grade(judge, draft) first"
        return Trajectory(
            key=self.key,
            task=self.task,
            ids=self.ids,
            logprobs=self.logprobs,
            segments=tuple(self.segments),
            version_spans=tuple(VersionSpan(start=a, end=b, version=v) for a, b, v in self.spans),
            turns=tuple(self.turns),
            finish_reason=self.finish or FinishReason.aborted,
            outcome=self.outcome,
            times=TrajectoryTimes(
                began=self.clock.began,
                ended_s=self.ended_s,
                granted_s=self.clock.granted_s,
                turns=tuple(
                    TurnTimes(written=written, calls=tuple(result.ran for result in turn.results))
                    for turn, written in zip(self.turns, self.written, strict=False)  # a foreign agent is not timed
                ),
                judged=self.judged,
            ),
            starts=tuple(self.starts),
            given=self.given,
            fork=self.fork,
        )


async def grade(judge: Judge, draft: Draft) -> Outcome:
    """Score an attempt that is over, within its clock."""
    is_truncated = draft.finish is not FinishReason.answered
    attempt = Attempt(task=draft.task, turns=tuple(draft.turns), is_truncated=is_truncated, given=draft.given)
    start_s = draft.clock.now_s
    async with draft.clock.waiting(draft.name, "the judge", kind="judge"):
        draft.outcome = await judge.score(attempt, deadline=draft.clock.latest)
    draft.judged = Span(start_s, draft.clock.now_s)
    return draft.outcome


Answered = Callable[[Draft, Tools], Awaitable[None]]
"""Called at every turn that was answered and is not the last."""


async def run_trajectory(
    agent: Agent,
    task: Task,
    key: TrajectoryKey,
    *,
    granted: Callable[[], None] = lambda: None,
    begun: Callable[[Draft], None] = lambda draft: None,
    answered: Answered | None = None,
    opening: AbstractAsyncContextManager[Tools] | None = None,
) -> Trajectory:
    """Roll out one attempt. Never raises for a failure of inference, sandbox or judge: that is data.

    granted, begun: as of `Agent.attempt`. answered: not of a foreign agent. opening: of its tools; None: the agent's.
    """
    async with agent.attempt(task, key, granted=granted, begun=begun) as draft:
        if (place := place_of(task, agent.environments)) is not None:
            agent = draft.policy = replace(agent, limits=place.limits(agent.limits))
        harness = agent.harness if place is None else place.harness
        if harness is not None and agent.counterpart is None and agent.functions is None:
            await harness.converse(agent, draft)
        else:
            own = agent.tools.open(seed=draft.tool_seed) if place is None else place.open(task, key)
            async with opening or own as tools:
                draft.episode = tools if isinstance(tools, OpenEpisode) else None
                while await agent.sample(draft) is not None:
                    draft.answer(await agent.reply(draft, tools))
                    if answered is not None and draft.finish is None:
                        await answered(draft, tools)
                if draft.episode is not None:
                    async with draft.clock.waiting(draft.name, "its environment", kind="tool"):
                        draft.given = Given(reward=await draft.episode.reward())
        await grade(agent.judge, draft)
    return draft.trajectory()


def _late(clock: TrajectoryClock, *, at_work: bool) -> Failed:
    """Return the failure of a trajectory whose wait ended by a deadline. at_work: not at the judge."""
    kind = "deadline"
    if clock.is_over:
        is_quiet = clock.quiet_s > MAX_QUIET_SHARE * clock.timeout_s
        kind = POLICY_TIMEOUT if at_work and not is_quiet else TRAJECTORY_TIMEOUT
    return Failed(kind=kind, retryable=True, detail=f"not done within {clock.timeout_s} s of its grant")
