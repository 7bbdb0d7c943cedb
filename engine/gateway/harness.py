"""A foreign agent in the place of the turn loop: it samples through a session of the gateway.

    task ──> Solve (a program, a function) ──requests──> Endpoint ──> Session ──> MessageGraph
               └─> Given: answer, reward                                             └─> Draft: ids, turns, starts

The record of an attempt is made from its requests: the calls of a turn are those that the policy sampled, their
results the tool messages of later requests.
"""

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from rocstar.engine.gateway.endpoint import Gateway
from rocstar.engine.gateway.graph import MessageGraph, SessionColumns, TurnNode
from rocstar.engine.gateway.messages import Message
from rocstar.engine.gateway.programs import AgentClient, as_given
from rocstar.engine.gateway.session import AgentSession
from rocstar.engine.gateway.tool_errors import is_error_text
from rocstar.engine.inference.base import InferenceError, StopReason
from rocstar.engine.progress.progress import turn_ended
from rocstar.engine.rollout.rollout import Agent, AgentFailure, Draft
from rocstar.engine.types import FinishReason, Given, Task, ToolResult, Turn, TurnForm

Solve = Callable[[Task, AgentClient], Awaitable[Given]]
"""An agent: works on a task with the model at the client's address. Raises AgentFailure."""


@dataclass(frozen=True, slots=True)
class GatewayHarness:
    """Runs an agent on each task, with a session of the gateway for the attempt."""

    gateway: Gateway
    solve: Solve
    open_session: Callable[..., AgentSession] = AgentSession

    async def converse(self, agent: Agent, draft: Draft) -> None:
        """Let the agent work until it ends, its clock does, or it has failed behind a limit.

        Raises:
            AgentFailure: it failed before a limit, or asked for nothing.
            InferenceError: the engine failed, whatever the agent made of it.
        """
        gateway, clock = self.gateway, draft.clock

        def deadline() -> float | None:
            clock.sign()  # a request is a sign of life
            return clock.latest

        session = self.open_session(agent, draft.key, max_context=gateway.max_context, deadline=deadline)
        secret = gateway.sessions.open(session)
        client = AgentClient(url=gateway.url, api_key=secret, model=gateway.model)
        failure: AgentFailure | InferenceError | None = None
        # An agent that asks for nothing has no grant: its clock starts when it could have worked as long.
        start = asyncio.get_running_loop().call_later(agent.limits.timeout_s, clock.start)
        try:
            async with clock.waiting(draft.name, "its agent", kind="tool"):
                draft.given = await self.solve(draft.task, client)
        except AgentFailure as error:
            failure = error
        finally:
            start.cancel()
            failure = session.failure or failure
            await gateway.sessions.close(secret)
            write_draft(draft, session.graph, agent.chat.form)
        turn_ended(draft.name, sum(turn.end - turn.start for turn in draft.turns))
        if failure is not None and (session.finish is None or isinstance(failure, InferenceError)):
            raise failure
        if not draft.turns:
            raise AgentFailure("agent_silent", "the agent ended without an answer of the model")
        draft.given = draft.given or Given()
        draft.finish = session.finish or FinishReason.answered


def function_agent(function: Callable[..., Awaitable[Any]], sandbox: object, args: dict[str, Any]) -> Solve:
    """Return the agent of a coroutine function `solve(task, client, sandbox, **args)`."""

    async def solve(task: Task, client: AgentClient) -> Given:
        try:
            return as_given(await function(task, client, sandbox, **args))
        except Exception as error:  # user code
            trace = "".join(traceback.format_exception(error))
            raise AgentFailure("agent_error", trace[-2000:]) from error

    return solve


def write_draft(draft: Draft, graph: MessageGraph, form: TurnForm) -> None:
    """Write the samples of a session as the columns and turns of a trajectory."""
    columns = graph.columns()
    draft.ids, draft.logprobs, draft.spans = columns.ids, columns.logprobs, columns.spans
    draft.segments, draft.starts = columns.segments, columns.starts or (0,)
    draft.turns = turns_of(columns, graph, form)


def turns_of(columns: SessionColumns, graph: MessageGraph, form: TurnForm) -> list[Turn]:
    """Return the turns that train, with the results that the agent reported."""
    tails = (message for node in graph.nodes for message in node.tail)
    reported = {message.call_id: message for message in tails if message.role == "tool" and message.call_id}
    return [_turn(graph.nodes[k], start, reported, form) for k, start in columns.turns]


def _turn(node: TurnNode, start: int, reported: dict[str, Message], form: TurnForm) -> Turn:
    """The turn of a node. An undecodable call, which its agent gets as text, has an error for a result."""
    calls, stopped = node.calls, node.generation.finish is StopReason.stop
    results: tuple[ToolResult, ...] = ()
    if any(call.malformed is not None for call in calls):
        results = (ToolResult(status="malformed_call", is_error=True, text=""),) * len(calls)
    elif any(call.id in reported for call in node.message.calls):
        results = tuple(_result(reported.get(call.id)) for call in node.message.calls)
    end = start + len(node.generation.ids)
    return Turn(start=start, end=end, text=node.text, stopped=stopped, calls=calls, results=results, form=form)


def _result(message: Message | None) -> ToolResult:
    """The result that the agent reported; `unreported` if it reported none for this call of a turn."""
    if message is None:
        return ToolResult(status="unreported", is_error=False, text="")
    is_error = message.is_error or is_error_text(message.text)
    return ToolResult(status="error" if is_error else "ok", is_error=is_error, text=message.text)
