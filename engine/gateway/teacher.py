"""A policy at another endpoint in the place of ours. Its conversations are data of a cold start.

agent ──request──> Gateway ──> TeacherSession ──/chat/completions──> Teacher
                                  └─ conversations: rows in the form of `sft.data`
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from rocstar.engine.gateway.dialects import chat
from rocstar.engine.gateway.dialects.fields import Fields
from rocstar.engine.gateway.graph import template_messages
from rocstar.engine.gateway.harness import write_draft
from rocstar.engine.gateway.messages import Finish, Message, Request, SampledTurn
from rocstar.engine.gateway.session import AgentSession, conversation_error
from rocstar.engine.inference.base import Generation, Inference, InferenceError, KvLoad, StopReason
from rocstar.engine.inference.weights import WeightSource
from rocstar.engine.rollout.rollout import Agent, Draft
from rocstar.engine.tools.results import cut_middle
from rocstar.engine.types import FinishReason, Task, ToolCall, TrajectoryKey
from rocstar.sandbox.http.errors import RequestError

NO_TOKENS = Generation(ids=(), logprobs=(), version_spans=(), finish=StopReason.stop, cached_tokens=0)
MAX_SHOWN = 300
"""Characters of an answer in an error's message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """A model at an endpoint with OpenAI's chat completions. `url`: of the API; it ends with /v1."""

    http: aiohttp.ClientSession
    url: str
    model: str
    api_key: str = ""
    sessions: dict[str, TeacherSession] = field(default_factory=dict)
    """By the key of the attempt."""

    async def answer(self, request: Request, *, max_tokens: int) -> tuple[Message, Finish]:
        """Return the answer to a request, and why it ended. InferenceError: the endpoint cannot be reached, or does
        not answer as it must."""
        messages = chat_messages(template_messages(request.messages))
        body: dict[str, Any] = {"model": self.model, "messages": messages, "max_tokens": max_tokens}
        optional = {"tools": request.functions, "stop": request.stops, "temperature": request.temperature}
        body |= {name: value for name, value in optional.items() if value not in (None, ())}
        where, headers = f"{self.url.rstrip('/')}/chat/completions", {"Authorization": f"Bearer {self.api_key}"}
        try:
            async with self.http.post(where, json=body, headers=headers) as response:
                content, status = await response.read(), response.status
        except aiohttp.ClientError as error:
            raise InferenceError("teacher_lost", f"{where}: {error}", retryable=True) from None
        if status != 200:
            detail = f"{where} answered {status}: {content[:MAX_SHOWN]!r}"
            raise InferenceError("teacher_refused", detail, retryable=status in (408, 429) or status >= 500)
        try:
            choice = json.loads(content)["choices"][0]
            (message,) = chat.read(Fields({"model": self.model, "messages": [choice["message"]]})).messages
            template_messages([message])  # refuses arguments that are no object
        except (KeyError, IndexError, TypeError, ValueError, RequestError) as error:
            detail = f"{where}: {content[:MAX_SHOWN]!r} is no chat completion: {error}"
            raise InferenceError("bad_reply", detail, retryable=True) from None
        finish: Finish = "tool_calls" if message.calls else "stop"
        return message, "length" if choice.get("finish_reason") == "length" else finish


def chat_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert messages in the form of chat templates to OpenAI's, in which the arguments of a call are a text."""
    copied: list[dict[str, Any]] = json.loads(json.dumps(messages))
    for call in (call["function"] for message in copied for call in message.get("tool_calls", ())):
        call["arguments"] = json.dumps(call["arguments"])
    return copied


class TeacherSession(AgentSession):
    """One attempt of an agent with the teacher. Tokens are unknown: `graph` has the messages alone."""

    def __init__(self, teacher: Teacher, agent: Agent, key: TrajectoryKey, **options: Any) -> None:
        """agent: its limits; its chat format is that of the model that will learn. options: as of `AgentSession`."""
        super().__init__(agent, key, **options)
        self._teacher = teacher
        teacher.sessions[str(key)] = self

    def conversations(self) -> list[dict[str, Any]]:
        """Return a row {"messages", "tools"} for each conversation that no later request continued.

        Left out is one that a limit cut, and one with an assistant's message that the teacher did not write: an agent
        edited it.
        """
        nodes, discards = self.graph.nodes, self.graph.discards()
        parents = {node.parent for node in nodes}
        written = {node.message.key: node.message for node in nodes}
        rows = []
        for leaf in range(len(nodes)):
            is_cut = nodes[leaf].generation.finish is StopReason.length
            if leaf in parents or leaf in discards or is_cut:
                continue
            messages = [m for k in self.graph.path(leaf) for m in (*nodes[k].tail, nodes[k].message)]
            if all(m.role != "assistant" or m.key in written for m in messages):
                shown = template_messages([written.get(m.key, m) for m in messages])
                rows.append({"messages": shown, "tools": list(nodes[leaf].functions)})
        return rows

    async def _sample(self, request: Request) -> SampledTurn:
        self._check_open()
        self.ignored.update(request.ignored)
        if not request.messages:
            raise RequestError("the teacher takes messages, no prompt; ask /v1/chat/completions", field="prompt")
        prompt, limits = await self._prompt(request), self.agent.limits
        if len(self.graph.nodes) >= limits.max_turns:
            self.finish = FinishReason.max_turns
            return self._closing(request, prompt)
        most = min(request.max_tokens or limits.max_response_tokens, limits.max_response_tokens)
        try:
            async with asyncio.timeout_at(self._deadline()):
                message, finish = await self._teacher.answer(request, max_tokens=most)
        except (InferenceError, TimeoutError) as error:
            late = InferenceError("deadline", "the teacher did not answer in time", retryable=True)
            self.failure = error if isinstance(error, InferenceError) else late
            kind, detail = self.failure.kind, self.failure.detail
            raise conversation_error(kind, detail, retryable=self.failure.retryable) from None
        self.finish = FinishReason.max_tokens if finish == "length" else None
        generation = replace(NO_TOKENS, finish=StopReason.length if self.finish else StopReason.stop)
        calls = tuple(ToolCall(name=c.name, arguments=json.loads(c.arguments or "{}")) for c in message.calls)
        self.graph.add(prompt, generation, message, text=message.text, calls=calls)
        return self._turn(request, message, finish, prompt, generation)


class TeacherLoop:
    """The built-in turn loop, by messages: the teacher's calls run in the agent's tools until it answers.

    messages: those of a task.
    """

    def __init__(self, teacher: Teacher, messages: Callable[[Task], Sequence[Mapping[str, Any]]]) -> None:
        self._teacher, self._messages = teacher, messages

    async def converse(self, agent: Agent, draft: Draft) -> None:
        """As of `Harness`. Raises InferenceError if the teacher failed."""
        said = chat.read(Fields({"model": "teacher", "messages": chat_messages(self._messages(draft.task))})).messages
        session = TeacherSession(self._teacher, agent, draft.key, deadline=lambda: draft.clock.latest)
        functions, limit = tuple(agent.chat.tools), agent.limits.max_tool_tokens
        draft.clock.start()
        async with agent.tools.open(seed=draft.tool_seed) as tools:
            while session.finish is None:
                async with draft.clock.waiting(draft.name, "the teacher", kind="generate"):
                    request = Request(model="teacher", messages=said, functions=functions)
                    try:
                        message = (await session.sample(request, len(said).to_bytes(4, "big"))).message
                    except RequestError as error:
                        raise session.failure or InferenceError("bad_reply", str(error), retryable=False) from None
                write_draft(draft, session.graph, agent.chat.form)
                if not message.calls or session.finish is not None:
                    break
                results = await agent.reply(draft, tools)
                assert isinstance(results, tuple), "a teacher has no counterpart"
                texts = [cut_middle(result.text, agent.chat.tokenizer, limit) for result in results]
                pairs = zip(message.calls, texts, strict=True)
                said = (*said, message, *(Message(role="tool", text=text, call_id=call.id) for call, text in pairs))
        draft.finish = session.finish or FinishReason.answered


class NoEngine(Inference):
    """In the place of an engine: a teacher takes messages, no ids."""

    async def generate(self, ids: list[int], **options: Any) -> Generation:
        raise InferenceError("no_engine", "a teacher takes messages, no ids", retryable=False)

    def load(self) -> KvLoad:
        return KvLoad(total=0, used=0, running=0, waiting=0)

    async def publish(self, version: int, source: WeightSource | None = None) -> None:
        raise InferenceError("frozen", "a teacher's weights are not ours", retryable=False)
