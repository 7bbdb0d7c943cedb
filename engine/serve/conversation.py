"""A request of a client: its choices, rolled out together by the turn loop, and their parts.

    order ──> ServedConversation.run ─┬─ choice 0: run_trajectory ─┐ parts
                                      ├─ choice 1: ...             ├──────> next() ──> the client's writer
                                      └─ choice n-1                ┘

The writer waits for parts; the choices wait for the engine and their tools, never for the writer. Unread
parts are buffered here; the limits of the conversation bound them.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from rocstar.engine.chat.chat import ChatFormat
from rocstar.engine.gateway.recording_engine import RecordingEngine
from rocstar.engine.gateway.session import conversation_error
from rocstar.engine.gateway.stream_parser import StreamParser
from rocstar.engine.gateway.stream_parts import Part, ToolResultPart, merge_parts
from rocstar.engine.rollout.rollout import Agent, run_trajectory
from rocstar.engine.tools.box import ToolBox, Tools
from rocstar.engine.tools.results import cut_middle
from rocstar.engine.tools.tool import ToolFailure
from rocstar.engine.types import (
    Attempt,
    Failed,
    FinishReason,
    Origin,
    Outcome,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryKey,
)
from rocstar.sandbox.http.errors import RequestError

UNJUDGED = "unjudged"
"""The kind of failure of a conversation without a reward."""
UNJUDGED_OUTCOME = Failed(kind=UNJUDGED, retryable=False, detail="it has no reward yet")


ServedModel = Literal["agent", "raw", "completion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationOrder:
    """A validated request of a client.

    Attributes:
        id: the id of the conversation and of its records; "" until it begins.
        served_model: the agent with its tools, the model with the client's, or the model alone.
        task: the question, as the records store it.
        prompt_ids: the token ids of the prompt.
        seed: the seed of the noise; choice k is sibling k.
        max_tokens: the limit over all turns, including tool results.
        stops: the stop sequences.
        functions: the client's tools; None for the agent's own.
        is_judged: the task has an answer, so the reward is known at the end.
        is_streamed: the client reads parts as they are produced.
        scores_prompt: return the log-probs of the prompt, computed once by the first choice.
    """

    id: str = ""
    served_model: ServedModel
    task: Task
    prompt_ids: list[int]
    seed: int
    num_choices: int
    temperature: float
    max_tokens: int
    stops: tuple[str, ...]
    functions: Sequence[Mapping[str, Any]] | None
    is_judged: bool
    is_streamed: bool
    scores_prompt: bool = False

    def make_parser(self, chat: ChatFormat) -> StreamParser | None:
        """Return the parser of a choice; None for a completion, whose text has no special parts."""
        if self.served_model == "completion":
            return None
        return StreamParser(chat.form if self.served_model == "agent" or self.functions else None)


class Unjudged:
    """A `Judge` for tasks without an answer: a person may give a reward later."""

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        return UNJUDGED_OUTCOME


class ServedConversation:
    """Invariant: when `run` has returned, each choice has one trajectory, also after a failure; the parts of
    a choice are in order, and none follows its end."""

    def __init__(self, agent: Agent, order: ConversationOrder, *, queue_timeout_s: float) -> None:
        """queue_timeout_s: how long a choice may wait for its place in the engine."""
        self.order, self._agent, self._queue_timeout_s = order, agent, queue_timeout_s
        self.trajectories: list[Trajectory] = []
        self.ended = asyncio.Event()
        self.choices = [
            RecordingEngine(
                agent.inference,
                agent.chat,
                self._emit,
                name=f"{order.id}/{k}",
                choice=k,
                parser=order.make_parser(agent.chat),
                functions=order.functions or (),
                stops=order.stops,
                is_streamed=order.is_streamed,
                scores_prompt=order.scores_prompt and k == 0,
            )
            for k in range(order.num_choices)
        ]
        self._queue_timeouts: set[int] = set()
        """The choices that got no slot in time."""
        self._parts: list[Part] = []
        self._new_parts: asyncio.Future[None] | None = None

    # ---- for the response writer ----

    async def next(self, timeout_s: float) -> list[Part] | None:
        """Return the parts since the last call as soon as there are some; [] at the timeout; None at the
        end."""
        if not self._parts and not self.ended.is_set():
            self._new_parts = asyncio.get_running_loop().create_future()
            timer = asyncio.get_running_loop().call_later(timeout_s, self._wake)
            try:
                await self._new_parts
            finally:
                timer.cancel()
                self._new_parts = None
        parts, self._parts = self._parts, []
        return None if not parts and self.ended.is_set() else merge_parts(parts)

    async def all_parts(self) -> list[Part]:
        """Wait for the end and return all parts."""
        await self.ended.wait()
        parts, self._parts = self._parts, []
        return merge_parts(parts)

    def stop(self) -> None:
        """The client has gone, or wants no more: end everything, down to the child of a tool."""
        for choice in self.choices:
            choice.stop()

    def refusal(self) -> RequestError | None:
        """Return the error that replaces the choices, or None."""
        for k, trajectory in enumerate(self.trajectories):
            outcome = trajectory.outcome
            if k in self._queue_timeouts:
                detail = f"{self._queue_timeout_s:g} s were not enough; ask again later"
                return conversation_error("queue_timeout", detail, retryable=True)
            if trajectory.finish_reason is FinishReason.aborted and isinstance(outcome, Failed):
                return conversation_error(outcome.kind, outcome.detail, retryable=outcome.retryable)
        return None

    def finish(self, choice: int) -> str:
        """OpenAI's finish reason."""
        trajectory = self.trajectories[choice]
        if self.choices[choice].stopped_by:
            return "stop"
        if trajectory.finish_reason is not FinishReason.answered:
            return "length"
        return "tool_calls" if self.choices[choice].calls else "stop"

    def usage(self) -> dict[str, Any]:
        """Tokens by who wrote them: sums over the records' segments; the prompt is counted once."""
        prompt = self.trajectories[0].prompt_length if self.trajectories else 0
        written = sum(t.num_policy_tokens for t in self.trajectories)
        tools = sum(s.end - s.start for t in self.trajectories for s in t.segments if s.origin is Origin.tool)
        cached = self.choices[0].cached_tokens or 0
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "prompt_tokens_details": {"cached_tokens": cached},
            "tool_tokens": tools,
            "turns": sum(len(t.turns) for t in self.trajectories),
        }

    # ---- the choices ----

    async def run(self) -> None:
        """Roll out all choices. Failures do not raise; see `refusal`."""
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._roll_out(k)) for k in range(self.order.num_choices)]
            self.trajectories = [one.result() for one in running]
            for choice in self.choices:
                choice.call_begins(choice.calls)
        finally:
            self.ended.set()
            self._wake()

    async def _roll_out(self, choice: int) -> Trajectory:
        order, recorder, loop = self.order, self.choices[choice], asyncio.get_running_loop()
        agent, functions = self._agent, order.functions
        limits = dataclasses.replace(agent.limits, max_response_tokens=order.max_tokens)
        agent = dataclasses.replace(
            agent,
            inference=recorder,
            tools=RecordingTools(agent.tools, recorder, max_tokens=limits.max_tool_tokens),
            judge=agent.judge if order.is_judged else Unjudged(),
            limits=limits,
            sampling=dataclasses.replace(agent.sampling, temperature=order.temperature),
            functions=None if functions is None else lambda _: functions,
            prompt=lambda _: list(order.prompt_ids),
        )
        key = TrajectoryKey(seed=order.seed, step=0, task_id=order.task.id, sibling=choice)
        patience = loop.call_later(self._queue_timeout_s, self._give_up, choice)
        try:
            return await run_trajectory(agent, order.task, key, granted=patience.cancel)
        finally:
            patience.cancel()

    def _give_up(self, choice: int) -> None:
        self._queue_timeouts.add(choice)
        self.choices[choice].stop()

    def _emit(self, part: Part) -> None:
        if self.ended.is_set():
            return
        self._parts.append(part)
        self._wake()

    def _wake(self) -> None:
        if self._new_parts is not None and not self._new_parts.done():
            self._new_parts.set_result(None)


class RecordingTools(Tools):
    """A tool box of which a client sees every call. Implements `ToolBox` and, when open, `Tools`."""

    def __init__(self, box: ToolBox, recorder: RecordingEngine, *, max_tokens: int) -> None:
        """max_tokens: of a result, as the policy reads it."""
        self._box, self._recorder, self._max_tokens = box, recorder, max_tokens
        self._tools: Tools | None = None

    @asynccontextmanager
    async def open(self, *, seed: int) -> AsyncIterator[Tools]:
        async with self._box.open(seed=seed) as self._tools:
            yield self

    async def execute(self, calls: Sequence[ToolCall], *, turn: int, deadline: float | None) -> tuple[ToolResult, ...]:
        assert self._tools is not None, "the tools are not open"
        recorder = self._recorder
        recorder.call_begins(calls)
        recorder.check()
        try:
            async with asyncio.timeout(None) as recorder.tool_wait:
                results = await self._tools.execute(calls, turn=turn, deadline=deadline)
        except TimeoutError:
            if recorder.is_stopped:
                raise ToolFailure("its client ended it while a tool ran") from None
            raise
        finally:
            recorder.tool_wait = None
        for index, (call, result) in enumerate(zip(calls, results, strict=True)):
            recorder.emit(
                ToolResultPart(
                    choice=recorder.choice,
                    id=recorder.call_id(index),
                    name=call.name,
                    status=result.status,
                    is_error=result.is_error,
                    text=cut_middle(result.text, recorder.chat.tokenizer, self._max_tokens),
                )
            )
        return results
