"""An endpoint on loopback over a policy that follows a script."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.inference.base import Sampling
from rocstar.engine.rollout.rollout import Agent, RolloutLimits
from rocstar.engine.serve.conversation_manager import ServeOptions
from rocstar.engine.serve.conversation_store import ConversationStore
from rocstar.engine.serve.endpoint import Endpoint
from rocstar.engine.serve.server import open_endpoint
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.tools.tool import Tool, ToolContext, ToolOutput
from rocstar.engine.types import Attempt, Outcome, Scored
from rocstar.sandbox.http.guard import Owner, Owners
from tests.fakes.scripted_policy import ByteTokenizer, Reply, Request, ScriptedPolicy

TOKENIZER = ByteTokenizer()
LLAMA = ByteTokenizer(special=["<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"])
QUESTION = {"role": "user", "content": "2+2?"}


@dataclass(kw_only=True)
class SlowTool(Tool):
    """Returns `text` when `gate` is set; notes the end of each call."""

    text: str = "4"
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    noted: list[str] = field(default_factory=list)
    began: asyncio.Event = field(default_factory=asyncio.Event)

    name = "calc"
    description = "Calculates"
    parameters = {"type": "object", "properties": {"code": {"type": "string"}}}  # noqa: RUF012
    keeps_deadline = True

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        self.began.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.noted.append("cancelled")
            raise
        self.noted.append("answered")
        return ToolOutput(self.text)


def ready_tool(text: str = "4") -> SlowTool:
    tool = SlowTool(text=text)
    tool.gate.set()
    return tool


class Fours:
    """A judge: 1 for a text that contains the answer."""

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        return Scored(reward=float(attempt.task.answer in attempt.text), method="fours")


def call(code: str) -> str:
    return "<tool_call>" + json.dumps({"name": "calc", "arguments": {"code": code}}) + "</tool_call>"


def scripted(replies: Sequence[str | Reply]) -> Callable[[Request], str | Reply]:
    """Return a script in which every conversation has these turns."""
    return lambda request: replies[request.turn - 1]


def make_agent(
    script: Any, tool: Tool, *, template: str = "compact", token_s: float | None = 0.0, **limits: Any
) -> Agent:
    bounds = {"max_response_tokens": 2000, "max_turns": 6, "max_tool_tokens": 200, "timeout_s": 60.0}
    tokenizer = LLAMA if template == "llama3" else TOKENIZER
    policy = script if isinstance(script, ScriptedPolicy) else ScriptedPolicy(script, tokenizer, token_s=token_s)
    return Agent(
        inference=policy,
        chat=ChatFormat(
            tokenizer, load_template(template, None), [tool.schema], thinking="keep" if "/" in template else "refuse"
        ),
        tools=Dispatcher(tools=[tool]),
        judge=Fours(),
        limits=RolloutLimits(**(bounds | limits)),
        sampling=Sampling(),
    )


@dataclass(kw_only=True)
class Client:
    """A client of the endpoint."""

    session: aiohttp.ClientSession
    endpoint: Endpoint
    tool: SlowTool
    agent: Agent
    notes: list[str]

    @property
    def conversations(self) -> Any:
        return self.endpoint.conversations

    @property
    def port(self) -> int:
        return int(self.endpoint.url.rpartition(":")[2])

    def post(self, path: str, body: Any, **options: Any) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.session.post(self.endpoint.url + path, data=data, **options)

    async def json(self, path: str, body: Any, *, status: int = 200, **options: Any) -> Any:
        async with self.post(path, body, **options) as response:
            payload = await response.json()
            assert response.status == status, payload
            return payload

    async def get(self, path: str, *, status: int = 200) -> bytes:
        async with self.session.get(self.endpoint.url + path) as response:
            assert response.status == status, await response.read()
            return await response.read()

    async def chat(self, *messages: Mapping[str, Any], status: int = 200, **fields: Any) -> Any:
        body = {"model": "rocstar-agent", "messages": messages or [QUESTION], **fields}
        return await self.json("/v1/chat/completions", body, status=status)

    def streaming(self, *messages: Mapping[str, Any], **fields: Any) -> Any:
        body = {"model": "rocstar-agent", "messages": messages or [QUESTION], "stream": True, **fields}
        return self.post("/v1/chat/completions", body)

    async def stream(self, *messages: Mapping[str, Any], **fields: Any) -> list[Any]:
        """Return every chunk of a stream, with `: ping` and the end as texts."""
        async with self.streaming(*messages, **fields) as response:
            assert response.status == 200, await response.text()
            return [chunk async for chunk in events(response)]


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    async for line in response.content:
        text = line.decode().strip()
        if text.startswith("data: {"):
            yield json.loads(text[6:])
        elif text:
            yield text


def of_stream(chunks: Sequence[Any], choice: int = 0) -> dict[str, Any]:
    """Return the message of the chunks in the form of a whole response."""
    message: dict[str, Any] = {"role": "", "content": "", "reasoning_content": "", "server_tool_events": []}
    for chunk in chunks:
        if isinstance(chunk, str):
            continue
        happened = chunk.get("server_tool_event")
        if happened is not None and happened["index"] == choice:
            message["server_tool_events"].append(happened)
        for payload in chunk["choices"]:
            if payload["index"] == choice:
                for name in ("role", "content", "reasoning_content"):
                    message[name] += payload["delta"].get(name, "")
    return {name: value for name, value in message.items() if value or name == "content"}


def without_ids(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message without the ids of its calls, which are unique."""
    events = [{**event, "id": ""} for event in message.get("server_tool_events", ())]
    calls = [{**call, "id": ""} for call in message.get("tool_calls", ())]
    return {**message, "server_tool_events": events, "tool_calls": calls}


@asynccontextmanager
async def opened(
    agent: Agent, tool: SlowTool, store: ConversationStore | None = None, **options: Any
) -> AsyncIterator[Client]:
    notes: list[str] = []
    async with open_endpoint(agent, ServeOptions(**options), store=store, note=notes.append) as endpoint:
        async with aiohttp.ClientSession() as session:
            yield Client(session=session, endpoint=endpoint, tool=tool, agent=agent, notes=notes)


Serving = Callable[..., Any]


@pytest.fixture
def serving(tmp_path: Path) -> Serving:
    """`async with serving(script, ...) as client`."""

    @asynccontextmanager
    async def serve(
        script: Any,
        *,
        tool: SlowTool | None = None,
        template: str = "compact",
        token_s: float | None = 0.0,
        keeps: bool = False,
        limits: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncIterator[Client]:
        tool = tool or ready_tool()
        agent = make_agent(script, tool, template=template, token_s=token_s, **(limits or {}))
        if token := options.pop("token", None):
            options["owners"] = Owners((Owner(name="", token=token),))
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(keeping(tmp_path / "served", agent)) if keeps else None
            options = {"max_context": 4000, **options}
            yield await stack.enter_async_context(opened(agent, tool, store, **options))

    return serve


def keeping(folder: Path, agent: Agent, **options: Any) -> ConversationStore:
    return ConversationStore(
        folder, decode=agent.chat.decode, num_answers=lambda t: 0, **{"temperature": 1.0, **options}
    )
