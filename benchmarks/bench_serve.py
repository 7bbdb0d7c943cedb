"""CPU and memory of serving beside the agent loop behind HTTP alone.

    python benchmarks/bench_serve.py [--quick] [--out FILE]

A child process serves an agent whose policy follows a script and whose tool answers at once; this process is
the client. The child's CPU clock is read before and after, and the same loop runs in the child behind HTTP alone,
at the same pace: the difference per turn is the overhead. A loop without a client takes half of the CPU per turn,
because its code and data stay in the processor's caches.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from aiohttp import web
from aiohttp.test_utils import RawTestServer

sys.path.insert(0, str(Path(__file__).parents[1]))
from report import claim, finish, result_parser

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.inference.base import Sampling
from rocstar.engine.rollout.rollout import Agent, RolloutLimits, run_trajectory
from rocstar.engine.serve.conversation import Unjudged
from rocstar.engine.serve.conversation_manager import ServeOptions
from rocstar.engine.serve.conversation_store import ConversationStore
from rocstar.engine.serve.server import open_endpoint
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.tools.python import PYTHON_SCHEMA, PYTHON_TOOL, PythonTool
from rocstar.engine.types import Task, TrajectoryKey
from rocstar.sandbox.types import Limits
from tests.fakes.sandbox import FakeSandbox, ok
from tests.fakes.scripted_policy import ByteTokenizer, Reply, Request, ScriptedPolicy

TURNS = 8
TOKENIZER = ByteTokenizer(corpus=["x = 1 + 1\nprint(x)", "the answer is", "code input arguments name"] * 4)
CODE = "x = 6 * 7\nprint(x)"
CALL = json.dumps({"name": PYTHON_TOOL, "arguments": {"code": CODE, "input": ""}})
SAID = f"<think>I compute it.</think>Now: <tool_call>{CALL}</tool_call>"
LAST = "<answer>\\boxed{42}</answer>"
QUESTION = "What is six times seven?"


SCRIPTS: dict[str, Callable[[Request], Reply]] = {
    "turns": lambda request: Reply(text=SAID if request.turn < TURNS else LAST),
    "one_call": lambda request: Reply(text=SAID if request.turn == 1 else LAST),
    "words": lambda request: Reply(text="q" * 48),  # a chunk per token: white space would wait
}


def make_agent(script: str, sandbox: Any) -> Agent:
    tool = PythonTool(limits=Limits(wall_s=60.0, cpu_s=60), flavour="stdlib", style="brief")
    return Agent(
        inference=ScriptedPolicy(SCRIPTS[script], TOKENIZER),
        chat=ChatFormat(TOKENIZER, load_template("compact", None), [tool.schema]),
        tools=Dispatcher(tools=[tool], sandbox=sandbox),
        judge=Unjudged(),
        limits=RolloutLimits(max_response_tokens=1 << 18, max_turns=TURNS + 2, max_tool_tokens=512, timeout_s=300.0),
        sampling=Sampling(),
    )


# ---- the child ----


def child(pipe: Connection, script: str, keeps: str) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_for(pipe, script, keeps))


async def serve_for(pipe: Connection, script: str, keeps: str) -> None:
    """Serve until the pipe says "end"."""
    loop = asyncio.get_running_loop()
    sandbox = FakeSandbox(lambda request: ok("42\n"))
    agent = make_agent(script, sandbox)
    policy: Any = agent.inference
    sandbox.requests = policy.requests = policy.released = deque[Any](maxlen=0)  # type: ignore[assignment]
    options = ServeOptions(max_choices=4096)
    async with AsyncExitStack() as stack:
        kept = None
        if keeps:
            folder = ConversationStore(Path(keeps), decode=agent.chat.decode, num_answers=lambda t: 1, temperature=1.0)
            kept = await stack.enter_async_context(folder)
        endpoint = await stack.enter_async_context(open_endpoint(agent, options, store=kept))
        bare = await stack.enter_async_context(RawTestServer(BareLoop(agent).answer))
        pipe.send((endpoint.url, str(bare.make_url("/"))))
        await loop.run_in_executor(None, pipe.recv)


class BareLoop:
    """The agent's loop behind HTTP alone: a request to /N is its next N turns."""

    def __init__(self, agent: Agent) -> None:
        self._inner, self._agent = agent.inference, replace(agent, inference=self)  # type: ignore[arg-type]
        self._go, self._ready = asyncio.Semaphore(0), asyncio.Semaphore(0)
        self._running: asyncio.Task[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def generate(self, ids: list[int], **options: Any) -> Any:
        self._ready.release()
        await self._go.acquire()
        return await self._inner.generate(ids, **options)

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Read the body, answer as many bytes as a turn has."""
        await request.read()
        for _ in range(int(request.path[1:])):
            if self._running is None or self._running.done():
                task = Task(id="t", source="bench", question=QUESTION, answer="")
                key = TrajectoryKey(seed=0, step=0, task_id="t", sibling=0)
                self._running = asyncio.create_task(run_trajectory(self._agent, task, key))
                self._running.add_done_callback(lambda _: self._ready.release())
                await self._ready.acquire()
            self._go.release()
            await self._ready.acquire()  # the next turn, or the end
        return web.Response(body=bytes(800))


ROUNDS, CONVERSATIONS = 20, 10
"""Each way of asking has so many conversations per round. The median of the rounds is reported."""


@asynccontextmanager
async def serving(script: str, *, keeps: str = "") -> AsyncIterator[tuple[str, str, int]]:
    """Address, address of the loop behind HTTP alone, and process id of a child that serves."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(theirs, script, keeps))
    process.start()
    theirs.close()  # so that recv ends with the child
    try:
        yield *await asyncio.to_thread(ours.recv), process.pid or 0
        ours.send("end")
        await asyncio.to_thread(process.join, 30)
    finally:
        process.kill()


def cpu_s(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3): /proc has steps of 10 ms


def rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def body(**fields: Any) -> Mapping[str, Any]:
    return {"model": "rocstar-agent", "messages": [{"role": "user", "content": QUESTION}], **fields}


async def ask(session: aiohttp.ClientSession, url: str, **fields: Any) -> Any:
    async with session.post(f"{url}/v1/chat/completions", json=body(**fields)) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def stream(session: aiohttp.ClientSession, url: str, **fields: Any) -> None:
    """Read a stream to its end."""
    done = False
    async with session.post(f"{url}/v1/chat/completions", json=body(stream=True, **fields)) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            done |= line.startswith(b"data: [DONE]")
    assert done, "a stream ended in the middle"


async def converse(session: aiohttp.ClientSession, url: str, *, seed: int) -> list[Any]:
    """An agent of the client: all turns in one session, whose history the client sends again. Return the requests."""
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    path, sent = f"{url}/sessions/{seed}", list[Any]()
    for _ in range(TURNS):
        sent.append({"model": "m", "messages": [*messages], "tools": [PYTHON_SCHEMA]})
        async with session.post(f"{path}/v1/chat/completions", json=sent[-1]) as response:
            assert response.status == 200, await response.text()
            message = (await response.json())["choices"][0]["message"]
        calls = message.get("tool_calls", ())
        messages += [message, *({"role": "tool", "tool_call_id": c["id"], "content": "42\n"} for c in calls)]
    async with session.delete(path) as response:
        assert response.status == 200
    return sent


# ---- measurements ----


async def overhead() -> dict[str, float]:
    """CPU microseconds by turn, and the overhead of a server, at once, streamed and in a session."""
    rounds: dict[str, list[float]] = {}
    async with serving("turns") as (url, bare, pid), aiohttp.ClientSession() as session:
        bodies = await converse(session, url, seed=0)

        async def loop(session: aiohttp.ClientSession, url: str, *, seed: int, turns: int = TURNS) -> None:
            for request in bodies[::turns]:
                async with session.post(f"{bare}{turns}", json=request) as response:
                    await response.read()

        ways = {"loop": loop, "at_once": ask, "streamed": stream, "paced": partial(loop, turns=1), "session": converse}
        for k in range(ROUNDS):
            for name, one in ways.items():
                before = cpu_s(pid)
                for seed in range(CONVERSATIONS):
                    await one(session, url, seed=1 + k * CONVERSATIONS + seed)
                rounds.setdefault(name, []).append((cpu_s(pid) - before) / CONVERSATIONS / TURNS * 1e6)
    found = {f"{name}_us": statistics.median(each[2:]) for name, each in rounds.items()}  # two to warm up
    for name, without in (("at_once", "loop"), ("streamed", "loop"), ("session", "paced")):
        found[f"{name}_overhead_us"] = found[f"{name}_us"] - found[f"{without}_us"]
    return found


async def first_byte(num: int = 300) -> dict[str, float]:
    """Milliseconds from a request on an open connection to the first byte of its stream."""
    took = []
    async with serving("words") as (url, *_), aiohttp.ClientSession() as session:
        for k in range(num):
            began = time.monotonic()
            path, data = f"{url}/v1/chat/completions", body(stream=True, seed=k)
            async with session.post(path, json=data) as response:
                await response.content.readany()
                took.append((time.monotonic() - began) * 1e3)
                await response.read()
    percentiles = statistics.quantiles(took[num // 10 :], n=100)
    return {"p50_ms": percentiles[49], "p99_ms": percentiles[98]}


async def memory(folder: Path, num: int) -> dict[str, float]:
    """Resident MiB of the server after a fifth, three fifths and all of `num` requests, with records kept."""
    seen: dict[str, float] = {}
    async with serving("one_call", keeps=str(folder)) as (url, *_, pid), aiohttp.ClientSession() as session:
        room = asyncio.Semaphore(32)

        async def one(k: int) -> None:
            async with room:
                await ask(session, url, seed=k, metadata={"task_id": f"t{k}"})

        for at in range(0, num, num // 5):
            await asyncio.gather(*(one(k) for k in range(at, at + num // 5)))
            seen[f"mib_after_{at + num // 5}"] = rss_mib(pid)
    return {**seen, "growth_mib": seen[f"mib_after_{num}"] - seen[f"mib_after_{num // 5}"]}


async def measure(quick: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    turn = await overhead()
    first = await first_byte()
    with tempfile.TemporaryDirectory() as folder:
        grown = await memory(Path(folder), 1000 if quick else 10_000)
    claims = [
        *(
            claim(f"CPU of {what} beyond that of the loop", turn[f"{name}_overhead_us"], "us", at_most=300)
            for name, what in {"at_once": "a turn", "streamed": "a streamed turn", "session": "a request"}.items()
        ),
        claim("p99 from a request to the first byte of its stream", first["p99_ms"], "ms", at_most=10),
        claim("growth of the server from a fifth of all requests to all", grown["growth_mib"], "MiB", at_most=10),
    ]
    return {"overhead": turn, "first": first, "memory": grown}, claims


def main() -> int:
    parser = result_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result, claims = runner.run(measure(options.quick))
    return finish("serve", result, claims, options.out)


if __name__ == "__main__":
    sys.exit(main())
