"""One request of a client: its choices, rolled out together by the turn loop, and what they say meanwhile.

    order ──> ServedConversation.run ─┬─ choice 0: run_trajectory ─┐ parts
                                      ├─ choice 1: ...             ├──────> next() ──> the client's writer
                                      └─ choice n-1                ┘

Who waits: the writer for parts; the choices for the engine and their tools, never for the writer. What the
writer has not taken yet waits here: never more than the conversation itself, which has its limits.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rocstar.engine.chat.toolcalls import tool_call_spans
from rocstar.engine.rollout.rollout import Agent, run_trajectory
from rocstar.engine.serve.overheard import Overheard, OverheardPolicy, OverheardTools
from rocstar.engine.serve.parts import Part, Said, merged
from rocstar.engine.serve.refusals import ServeRefusal, failed
from rocstar.engine.serve.spoken import AsWritten, Spoken
from rocstar.engine.types import (
    Attempt,
    Failed,
    FinishReason,
    Origin,
    Outcome,
    Task,
    Trajectory,
    TrajectoryKey,
    TurnForm,
)

Face = Literal["agent", "raw", "completion"]
UNJUDGED = "unjudged"
"""The kind of failure of a conversation that nobody has rewarded yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationOrder:
    """What a client asked for, checked.

    Attributes:
        id: of the conversation, and of its records.
        face: the agent with its tools, the model with the client's, or the model alone.
        task: what is asked, as the records keep it.
        prompt_ids: what the policy reads first.
        seed: of the noise; choice k is sibling k.
        max_tokens: of all turns together, what tools wrote included.
        stops: texts that end the policy's writing.
        functions: the client's tools; None where the agent's own are shown.
        is_judged: the task has an answer, so that the reward is known at once.
        is_streamed: the client reads parts as they come.
        scores_prompt: the log-probs of the prompt are wanted, of the first choice: they are those of all.
    """

    id: str
    face: Face
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


class Unjudged:
    """Implements `Judge` where nobody knows the answer: a reward may come later, from a person."""

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        return Failed(kind=UNJUDGED, retryable=False, detail="nobody has rewarded it yet")


class ServedConversation:
    """Invariant: when `run` has returned there is one trajectory per choice, whatever became of it; parts of
    a choice come in the order in which they happened, and none after the end.
    """

    def __init__(self, agent: Agent, order: ConversationOrder, *, queue_timeout_s: float) -> None:
        """queue_timeout_s: how long a choice may wait for its place in the engine."""
        self.order, self._agent, self._queue_timeout_s = order, agent, queue_timeout_s
        self.trajectories: list[Trajectory] = []
        self._ended = asyncio.Event()
        self.choices = [
            Overheard(
                f"{order.id}/{k}",
                k,
                agent.chat,
                self._tell,
                stops=order.stops,
                spoken=_spoken(order, agent.chat.form),
                at_once=not order.is_streamed,
                scores_prompt=order.scores_prompt and k == 0,
            )
            for k in range(order.num_choices)
        ]
        self._waited: set[int] = set()
        """Choices that got no place in time."""
        self._parts: list[Part] = []
        self._news: asyncio.Future[None] | None = None

    # ---- for whoever writes to the client ----

    async def next(self, timeout_s: float) -> list[Part] | None:
        """What happened since the last call, as soon as something has; nothing when the time is over; None at
        the end."""
        if not self._parts and not self.has_ended:
            self._news = asyncio.get_running_loop().create_future()
            timer = asyncio.get_running_loop().call_later(timeout_s, self._wake)
            try:
                await self._news
            finally:
                timer.cancel()
                self._news = None
        parts, self._parts = self._parts, []
        return None if not parts and self.has_ended else merged(parts)

    async def all_parts(self) -> list[Part]:
        """Everything that happened, when it has ended."""
        await self._ended.wait()
        parts, self._parts = self._parts, []
        return merged(parts)

    def stop(self) -> None:
        """The client has gone, or wants no more: end everything, down to the child of a tool."""
        for choice in self.choices:
            choice.stop()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    @property
    def is_stopped(self) -> bool:
        return any(choice.is_stopped for choice in self.choices)

    def refusal(self) -> ServeRefusal | None:
        """What to answer in place of the choices; None where there are answers."""
        for k, trajectory in enumerate(self.trajectories):
            outcome = trajectory.outcome
            if k in self._waited:
                detail = f"{self._queue_timeout_s:g} s were not enough; ask again later"
                return failed("queue_timeout", detail, retryable=True)
            if trajectory.finish_reason is FinishReason.aborted and isinstance(outcome, Failed):
                return failed(outcome.kind, outcome.detail, retryable=outcome.retryable)
        return None

    def finish(self, choice: int) -> str:
        """OpenAI's finish reason."""
        trajectory = self.trajectories[choice]
        if self.choices[choice].is_cut:
            return "stop"
        if trajectory.finish_reason is not FinishReason.answered:
            return "length"
        return "tool_calls" if self._calls(trajectory) else "stop"

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
        """Roll out all choices. A failure is data: `refusal`."""
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._roll_out(k)) for k in range(self.order.num_choices)]
            self.trajectories = [one.result() for one in running]
            for k, trajectory in enumerate(self.trajectories):
                self._tell_calls(k, trajectory)
        finally:
            self._ended.set()
            self._wake()

    async def _roll_out(self, choice: int) -> Trajectory:
        order, overheard, loop = self.order, self.choices[choice], asyncio.get_running_loop()
        agent = self._agent_of(overheard)
        key = TrajectoryKey(seed=order.seed, step=0, task_id=order.task.id, sibling=choice)
        patience = loop.call_later(self._queue_timeout_s, self._give_up, choice)
        try:
            return await run_trajectory(agent, order.task, key, granted=patience.cancel)
        finally:
            patience.cancel()

    def _agent_of(self, overheard: Overheard) -> Agent:
        """The agent, overheard, within what the client asked for."""
        order, agent, functions = self.order, self._agent, self.order.functions
        limits = dataclasses.replace(agent.limits, max_response_tokens=order.max_tokens)
        return dataclasses.replace(
            agent,
            inference=OverheardPolicy(agent.inference, overheard),
            tools=OverheardTools(agent.tools, overheard, max_tokens=limits.max_tool_tokens),
            judge=agent.judge if order.is_judged else Unjudged(),
            limits=limits,
            sampling=dataclasses.replace(agent.sampling, temperature=order.temperature),
            functions=None if functions is None else lambda _: functions,
            prompt=lambda _: list(order.prompt_ids),
        )

    def _give_up(self, choice: int) -> None:
        self._waited.add(choice)
        self.choices[choice].stop()

    def _calls(self, trajectory: Trajectory) -> bool:
        return self.order.face == "raw" and bool(self.order.functions) and _is_calling(trajectory)

    def _tell_calls(self, choice: int, trajectory: Trajectory) -> None:
        """Of the raw face: the client shall make the calls of the last turn. What is no call stays text."""
        if self.order.face != "raw" or not self.order.functions or not trajectory.turns:
            return
        turn, overheard = trajectory.turns[-1], self.choices[choice]
        if _is_calling(trajectory):
            overheard.call_begins(turn.calls)
        elif turn.calls:
            (start, _), *_ = tool_call_spans(turn.text, turn.form)
            self._tell(Said(choice, "content", turn.text[start:]))

    def _tell(self, part: Part) -> None:
        if self.has_ended:
            return
        self._parts.append(part)
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


def _spoken(order: ConversationOrder, form: TurnForm) -> Spoken | AsWritten:
    if order.face == "completion":
        return AsWritten()
    return Spoken(form if order.face == "agent" or order.functions else None)


def _is_calling(trajectory: Trajectory) -> bool:
    """Whether the last turn ends in calls, all of which can be made."""
    if trajectory.finish_reason is not FinishReason.answered or not trajectory.turns:
        return False
    calls = trajectory.turns[-1].calls
    return bool(calls) and all(call.malformed is None for call in calls)
