"""A policy at another endpoint in the place of ours. Its conversations are data of a cold start.

agent ──request──> Gateway ──> TeacherSession ──/chat/completions──> Teacher
                                  └─ conversations: rows in the form of `sft.data`
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import aiohttp

from rocstar.engine.gateway.dialects import chat
from rocstar.engine.gateway.graph import template_messages
from rocstar.engine.gateway.messages import Finish, Message, Request, SampledTurn
from rocstar.engine.gateway.session import AgentSession, conversation_error
from rocstar.engine.inference.base import Generation, InferenceError, StopReason
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.types import FinishReason, TrajectoryKey
from rocstar.sandbox.http.errors import RequestError

NO_TOKENS = Generation(ids=(), logprobs=(), version_spans=(), finish=StopReason.stop, cached_tokens=0)
MAX_SHOWN = 300
"""Characters of an answer in an error's message."""


class Teacher:
    """A model at an endpoint with OpenAI's chat completions; enter it before the first request."""

    def __init__(self, url: str, *, model: str, api_key: str = "", max_requests: int, timeout_s: float) -> None:
        """
        Args:
            url: of the API; it ends with /v1.
            model: its name there.
            max_requests: at a time.
            timeout_s: of one request.
        """
        self._url, self._model, self._room = f"{url.rstrip('/')}/chat/completions", model, max_requests
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def __aenter__(self) -> Teacher:
        connector = aiohttp.TCPConnector(limit=self._room)
        self._http = aiohttp.ClientSession(connector=connector, timeout=self._timeout, headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def answer(self, request: Request, *, max_tokens: int) -> tuple[Message, Finish]:
        """Return the answer to a request, and why it ended.

        Raises:
            InferenceError: the endpoint cannot be reached or does not answer as it must.
            TimeoutError: it did not answer in time.
        """
        messages = chat_messages(template_messages(request.messages))
        body: dict[str, Any] = {"model": self._model, "messages": messages, "max_tokens": max_tokens}
        optional = {"tools": request.functions, "stop": request.stops, "temperature": request.temperature}
        body |= {name: value for name, value in optional.items() if value not in (None, ())}
        try:
            async with self._http.post(self._url, json=body) as response:
                content, status = await response.read(), response.status
        except aiohttp.ClientError as error:
            raise InferenceError("teacher_lost", f"{self._url}: {error}", retryable=True) from None
        if status != 200:
            detail = f"{self._url} answered {status}: {content[:MAX_SHOWN]!r}"
            raise InferenceError("teacher_refused", detail, retryable=status in (408, 429) or status >= 500)
        try:
            choice = json.loads(content)["choices"][0]
            (message,) = chat.read({"model": self._model, "messages": [choice["message"]]}).messages
        except (KeyError, IndexError, TypeError, ValueError, RequestError) as error:
            detail = f"{self._url}: {content[:MAX_SHOWN]!r} is no chat completion: {error}"
            raise InferenceError("bad_reply", detail, retryable=True) from None
        if choice.get("finish_reason") == "length":
            return message, "length"
        return message, "tool_calls" if message.calls else "stop"


def chat_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert messages in the form of chat templates to OpenAI's, in which the arguments of a call are a text."""
    copied: list[dict[str, Any]] = json.loads(json.dumps(messages))
    for call in (call["function"] for message in copied for call in message.get("tool_calls", ())):
        call["arguments"] = json.dumps(call["arguments"])
    return copied


class TeacherSession(AgentSession):
    """One attempt of an agent with the teacher. Tokens are unknown: `graph` has the messages alone."""

    def __init__(
        self,
        teacher: Teacher,
        agent: Agent,
        key: TrajectoryKey,
        *,
        deadline: Callable[[], float | None] = lambda: None,
    ) -> None:
        """As of `AgentSession`. agent: its limits; its chat format is that of the model that will learn."""
        super().__init__(agent, key, deadline=deadline)
        self._teacher = teacher

    def conversations(self) -> list[dict[str, Any]]:
        """Return a row {"messages", "tools"} for each conversation that no later request continued.

        A conversation with an assistant's message that the teacher did not write is left out: an agent edited it.
        """
        nodes, discards = self.graph.nodes, self.graph.discards()
        parents = {node.parent for node in nodes}
        written = {node.message.key: node.message for node in nodes}
        rows = []
        for leaf in range(len(nodes)):
            if leaf in parents or leaf in discards:
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
        except InferenceError as error:
            self.failure = error
            raise conversation_error(error.kind, error.detail, retryable=error.retryable) from None
        except TimeoutError:
            self.failure = InferenceError("deadline", "the teacher did not answer in time", retryable=True)
            raise conversation_error("deadline", self.failure.detail, retryable=False) from None
        self.finish = FinishReason.max_tokens if finish == "length" else None
        self.graph.add(prompt, NO_TOKENS, message)
        return self._turn(request, message, finish, prompt, NO_TOKENS)
