"""What serving costs beside the loop alone, and whether streams, memory and stops hold.

    python benchmarks/bench_serve.py --out benchmarks/results/serve.json

A child process serves an agent whose policy follows a script and whose tool answers at once; this process is
the client. Its CPU is read from /proc before and after, and the same conversations are run in a child without
a server: the difference by turn is the overhead. The client that goes away leaves a real sandbox whose
program sleeps. Fuzzed conversations are asked twice with one seed, at once and streamed; a token is a byte.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import itertools
import json
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import uvloop
from aiohttp import web

sys.path.insert(0, str(Path(__file__).parent))
from sandbox_bench.report import bar, finish

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.inference.base import Sampling
from rocstar.engine.rollout.rollout import Agent, RolloutLimits, run_trajectory
from rocstar.engine.serve.asked import AGENT, AskedChat, read
from rocstar.engine.serve.conversation import ServedConversation, Unjudged
from rocstar.engine.serve.desk import DeskLimits
from rocstar.engine.serve.endpoint import ServeOptions
from rocstar.engine.serve.faces import Faces
from rocstar.engine.serve.kept import KeptConversations
from rocstar.engine.serve.opened import open_endpoint
from rocstar.engine.serve.parts import Said
from rocstar.engine.serve.said import ChatWords
from rocstar.engine.testing.policy import ByteTokenizer, Reply, Request, ScriptedPolicy
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.tools.python import PYTHON_TOOL, PythonTool
from rocstar.engine.types import Task, TrajectoryKey
from rocstar.sandbox import SandboxPool
from rocstar.sandbox.testing import FakeSandbox, ok
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits

TURNS = 8
WAIT_S, IDLE_S = 200.0, 60.0
"""What a tool takes, and after how long a silence a proxy ends a connection."""
TOKENIZER = ByteTokenizer(corpus=["x = 1 + 1\nprint(x)", "the answer is", "code input arguments name"] * 4)
CODE = "x = 6 * 7\nprint(x)"
CALL = json.dumps({"name": PYTHON_TOOL, "arguments": {"code": CODE, "input": ""}})
SAID = f"<think>I compute it.</think>Now: <tool_call>{CALL}</tool_call>"
SLOWLY = "slowly()"
LAST = "<answer>\\boxed{42}</answer>"
QUESTION = "What is six times seven?"
FUZZ = [
    "<think>",
    "</think>",
    "é🙂",
    "<",
    " \n",
    "word",
    "<tool_call>",
    f"<tool_call>{CALL}</tool_call>",
    "STOP",
]


def turns_of(request: Request) -> Reply:
    return Reply(text=SAID if request.turn < TURNS else LAST)


def one_call(request: Request) -> Reply:
    return Reply(text=SAID if request.turn == 1 else LAST)


def fuzzed(request: Request) -> Reply:
    rng = random.Random(f"{request.seed}|{request.turn}")
    return Reply(text="".join(rng.choices(FUZZ, k=rng.randrange(7))) if request.turn < 4 else LAST)


def sleeps(request: Request) -> Reply:
    arguments = {"code": "import time\ntime.sleep(60)", "input": ""}
    return Reply(text=f"<tool_call>{json.dumps({'name': PYTHON_TOOL, 'arguments': arguments})}</tool_call>")


def words(request: Request) -> Reply:
    return Reply(text="q" * 48)  # a chunk per token: white space would wait for what follows it


def waits(request: Request) -> Reply:
    return Reply(text=SAID.replace("6 * 7", SLOWLY) if request.turn == 1 else LAST)


SCRIPTS = {
    "turns": turns_of,
    "one_call": one_call,
    "fuzzed": fuzzed,
    "words": words,
    "sleeps": sleeps,
    "waits": waits,
}


def make_agent(script: str, token_s: float | None, sandbox: Any) -> Agent:
    tool = PythonTool(limits=Limits(wall_s=60.0, cpu_s=60), flavour="stdlib", style="brief")
    tokenizer = ByteTokenizer() if script == "fuzzed" else TOKENIZER
    return Agent(
        inference=ScriptedPolicy(SCRIPTS[script], tokenizer, token_s=token_s),
        chat=ChatFormat(tokenizer, load_template("compact", None), [tool.schema]),
        tools=Dispatcher(tools=[tool], sandbox=sandbox),
        judge=Unjudged(),
        limits=RolloutLimits(
            max_response_tokens=1 << 18, max_turns=TURNS + 2, max_tool_tokens=512, timeout_s=300.0
        ),
        sampling=Sampling(),
    )


# ---- the child ----


def child(
    pipe: Connection, script: str, token_s: float | None, keeps: str, real: bool, max_unwritten: int
) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_for(pipe, script, token_s, keeps, real, max_unwritten))


async def serve_for(
    pipe: Connection, script: str, token_s: float | None, keeps: str, real: bool, max_unwritten: int
) -> None:
    """Serve until the pipe says otherwise; it is told of idleness with the clock of it."""
    loop = asyncio.get_running_loop()
    async with SandboxPool(["stdlib"]) if real else _nothing() as pool:
        sandbox = pool if real else SlowSandbox(lambda request: ok("42\n"))
        agent = make_agent(script, token_s, sandbox)
        if not real:
            sandbox.requests = _Forgetful()
        agent.inference.requests = _Forgetful()  # type: ignore[attr-defined]
        agent.inference.released = _Forgetful()  # type: ignore[attr-defined]
        options = ServeOptions(desk=DeskLimits(max_choices=4096, max_unwritten=max_unwritten))
        kept = None
        if keeps:
            kept = KeptConversations(
                Path(keeps), decode=agent.chat.decode, num_answers=lambda text: 1, temperature=1.0
            )
            await kept.__aenter__()
        async with open_endpoint(agent, options, kept=kept) as listening:
            pipe.send(listening.url)
            while True:
                asked = await loop.run_in_executor(None, pipe.recv)
                if asked == "end":
                    break
                if asked == "idle":
                    await listening.endpoint.desk._idle.wait()
                    pipe.send(time.monotonic())
                elif asked == "direct":
                    pipe.send(await direct(agent))
                elif asked == "stall" and kept is not None:
                    gate = threading.Event()
                    kept._thread.submit(gate.wait)
                    pipe.send("stalled")
                elif asked == "on":
                    gate.set()
                    pipe.send("on")
                elif asked == "memory at rest":
                    in_flight = listening.endpoint.desk.in_flight
                    await listening.endpoint.desk._idle.wait()
                    pipe.send(memory_facts(in_flight))
                elif asked == "memory":
                    pipe.send(memory_facts(listening.endpoint.desk.in_flight))
                elif asked == "stages":
                    pipe.send(stages(agent))
                elif isinstance(asked, int):
                    pipe.send(await listened(agent, asked))
        if kept is not None:
            await kept.__aexit__(None, None, None)


class SlowSandbox(FakeSandbox):
    """Takes its time over SLOWLY."""

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        if SLOWLY in request.code:
            await asyncio.sleep(WAIT_S)
        return await super().run(request, deadline=deadline)


class _Forgetful(list[Any]):
    """What the stand-ins note would grow with every request."""

    def append(self, item: Any) -> None:
        pass


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield


async def listened(agent: Agent, num: int) -> float:
    """CPU seconds of the process for so many conversations without a server whose tokens somebody hears."""
    began = time.process_time()

    async def one(k: int) -> None:
        key = TrajectoryKey(seed=k, step=0, task_id=f"t{k}", sibling=0)
        agent.inference.on_tokens(str(key), lambda place, token: None)  # type: ignore[attr-defined]
        task = Task(id=f"t{k}", source="bench", question=QUESTION, answer="")
        await run_trajectory(agent, task, key)

    await asyncio.gather(*(one(k) for k in range(num)))
    return time.process_time() - began


def stages(agent: Agent, num: int = 300) -> dict[str, float]:
    """Microseconds of what a request goes through before its conversation begins, and at its first part."""
    faces = Faces(agent, None, lambda: "1-0")
    data = json.dumps(body(stream=True, seed=1)).encode()
    asked = read(AskedChat, data)
    order = faces.named(faces.chat(asked))
    conversation = ServedConversation(agent, order, queue_timeout_s=1.0)

    def spent(work: Callable[[], Any]) -> float:
        began = time.process_time()
        for _ in range(num):
            work()
        return (time.process_time() - began) / num * 1e6

    def opened() -> None:
        words = ChatWords(conversation, AGENT, "")
        words.first() + words.chunks([Said(0, "content", "the")])

    return {
        "read_us": spent(lambda: read(AskedChat, data)),
        "order_us": spent(lambda: faces.named(faces.chat(asked))),
        "conversation_us": spent(lambda: ServedConversation(agent, order, queue_timeout_s=1.0)),
        "first_chunks_us": spent(opened),
    }


async def direct(agent: Agent) -> float:
    """CPU seconds of the process for DIRECT conversations without a server."""
    began = time.process_time()
    for k in range(DIRECT):
        task = Task(id=f"t{k}", source="bench", question=QUESTION, answer="")
        await run_trajectory(agent, task, TrajectoryKey(seed=k, step=0, task_id=f"t{k}", sibling=0))
    return time.process_time() - began


def memory_facts(in_flight: int) -> dict[str, float]:
    """What this process holds: blocks of Python's allocator, bytes of the C library's, used and kept free.

    Nothing may go on meanwhile: a tuple that another thread makes of a generator cannot be finished while
    `gc.get_objects` holds it, and that thread's work ends with a SystemError.
    """
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Mallinfo
    facts = libc.mallinfo2()
    return {
        "in_flight": in_flight,
        "python_blocks": sys.getallocatedblocks(),
        "objects": len(gc.get_objects()),
        "malloc_used_mib": (facts.uordblks + facts.hblkhd) / 2**20,
        "malloc_free_mib": facts.fordblks / 2**20,
    }


MALLINFO = (
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keepcost",
)


class Mallinfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [(name, ctypes.c_size_t) for name in MALLINFO]


DIRECT = 200


@asynccontextmanager
async def serving(
    script: str,
    *,
    token_s: float | None = None,
    keeps: str = "",
    real: bool = False,
    max_unwritten: int = 256,
) -> AsyncIterator[tuple[str, Connection, int]]:
    """Address, pipe and process id of a child that serves."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(theirs, script, token_s, keeps, real, max_unwritten))
    process.start()
    theirs.close()  # so that the end of the child ends what waits for it
    try:
        yield await asyncio.to_thread(ours.recv), ours, process.pid or 0
        ours.send("end")
        await asyncio.to_thread(process.join, 30)
    finally:
        process.kill()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def body(**fields: Any) -> Mapping[str, Any]:
    return {"model": "rocstar-agent", "messages": [{"role": "user", "content": QUESTION}], **fields}


async def ask(session: aiohttp.ClientSession, url: str, **fields: Any) -> Any:
    async with session.post(f"{url}/v1/chat/completions", json=body(**fields)) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def stream(session: aiohttp.ClientSession, url: str, **fields: Any) -> list[Any]:
    """The chunks of a stream that came to its end."""
    chunks, done = [], False
    async with session.post(f"{url}/v1/chat/completions", json=body(stream=True, **fields)) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: {"):
                chunks.append((time.monotonic(), json.loads(line[6:])))
            done |= line.startswith(b"data: [DONE]")
    assert done, "a stream ended in the middle"
    return chunks


def connected() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


# ---- what is measured ----


async def overhead() -> dict[str, float]:
    """CPU microseconds by turn: the loop alone, and what a server adds, at once and streamed."""
    found: dict[str, float] = {}
    async with serving("turns") as (url, pipe, pid), connected() as session:
        for k in range(30):
            await ask(session, url, seed=k)
        pipe.send("direct")
        await asyncio.to_thread(pipe.recv)  # warm
        pipe.send("direct")
        found["direct_us"] = await asyncio.to_thread(pipe.recv) / DIRECT / TURNS * 1e6
        for name, one in (("at_once", ask), ("streamed", stream)):
            before = cpu_s(pid)
            for k in range(DIRECT):
                await one(session, url, seed=k)
            spent = (cpu_s(pid) - before) / DIRECT / TURNS * 1e6
            found[f"{name}_us"] = spent
            found[f"{name}_overhead_us"] = spent - found["direct_us"]
    return found


async def wall_of_agents(num: int = 64) -> dict[str, float]:
    """Seconds of so many agents at once whose engine writes a token every 20 ms, served and alone."""
    token_s = 0.02
    agent = make_agent("one_call", token_s, FakeSandbox(lambda request: ok("42\n")))
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for k in range(num):
            task = Task(id=f"t{k}", source="bench", question=QUESTION, answer="")
            key = TrajectoryKey(seed=k, step=0, task_id=f"t{k}", sibling=0)
            group.create_task(run_trajectory(agent, task, key))
    alone = time.monotonic() - began
    async with serving("one_call", token_s=token_s) as (url, _, _), connected() as session:
        await ask(session, url)
        began = time.monotonic()
        await asyncio.gather(*(ask(session, url, seed=k) for k in range(num)))
        served = time.monotonic() - began
    return {"alone_s": alone, "served_s": served, "share": served / alone - 1}


TOKEN_S = 0.25
SaidAt = tuple[float, str]
"""When a piece of text came."""


async def many_streams(num: int = 1000) -> dict[str, float]:
    """So many streams at once: how many came whole, how late their chunks were, and what a chunk costs.

    Beside them the floor: the same client on a server that writes the same bytes at the same pace and does
    nothing else; and the engine with its loop, heard by nobody who writes.
    """
    async with serving("words", token_s=TOKEN_S) as (url, pipe, pid), connected() as session:
        whole = await ask(session, url, seed=1)
        text = whole["choices"][0]["message"]["content"]
        before = cpu_s(pid)
        streams = await asyncio.gather(*(said(session, url, k) for k in range(num)), return_exceptions=True)
        spent = cpu_s(pid) - before
        pipe.send(num)
        engine = await asyncio.to_thread(pipe.recv)
    told = [one for one in streams if not isinstance(one, BaseException)]
    good = sum("".join(piece for _, piece in one) == text for one in told)
    pieces = sum(map(len, told))
    async with bare(len(told[0])) as (url, pid), connected() as session:
        before = cpu_s(pid)
        floor = await asyncio.gather(*(said(session, url, k) for k in range(num)))
        floor_spent = cpu_s(pid) - before
    return {
        "streams": num,
        "whole": good,
        "chunks": pieces,
        **lateness(told),
        **{f"bare_{name}": value for name, value in lateness(floor).items()},
        "server_us": spent / pieces * 1e6,
        "engine_us": engine / pieces * 1e6,
        "own_us": (spent - engine) / pieces * 1e6,
        "bare_us": floor_spent / pieces * 1e6,
    }


async def said(session: aiohttp.ClientSession, url: str, seed: int) -> list[SaidAt]:
    """Texts of a stream, with the times at which they came. The client does as little as it can meanwhile."""
    lines: list[tuple[float, bytes]] = []
    async with session.post(f"{url}/v1/chat/completions", json=body(stream=True, seed=seed)) as response:
        assert response.status == 200, await response.text()
        held = b""
        async for data, is_whole in response.content.iter_chunks():
            held += data
            if is_whole and held:  # the last chunk is empty
                lines.append((time.monotonic(), held))
                held = b""
        lines += [(time.monotonic(), held)] if held else []  # the end may come with the last chunk
    assert lines[-1][1].endswith(b"data: [DONE]\n\n"), "a stream ended in the middle"
    found: list[SaidAt] = []
    for at, data in lines:
        for line in data.split(b"\n\n"):
            if line.startswith(b"data: {"):
                delta = json.loads(line[6:])["choices"][0]["delta"]
                found += [(at, delta["content"])] if delta.get("content") else []
    return found


def lateness(streams: list[list[SaidAt]]) -> dict[str, float]:
    """How much later than a token's time a chunk came: of all, and of those while every stream went on."""
    begun, ending = max(one[0][0] for one in streams), min(one[-1][0] for one in streams)
    pairs = [pair for one in streams for pair in itertools.pairwise(at for at, _ in one)]
    late = [b - a - TOKEN_S for a, b in pairs]
    steady = [b - a - TOKEN_S for a, b in pairs if begun <= a and b <= ending]
    found = {"begun_within_s": begun - min(one[0][0] for one in streams)}
    for name, values in (("late", late), ("steady", steady)):
        if values:
            found[f"{name}_p50_s"], found[f"{name}_p99_s"] = np.percentile(values, [50, 99]).tolist()
    return found


@asynccontextmanager
async def bare(num_pieces: int) -> AsyncIterator[tuple[str, int]]:
    """Address and process id of a child that writes so many pieces to whoever asks."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=bare_child, args=(theirs, num_pieces))
    process.start()
    theirs.close()
    try:
        yield await asyncio.to_thread(ours.recv), process.pid or 0
    finally:
        process.kill()


def bare_child(pipe: Connection, num_pieces: int) -> None:
    piece = {"id": "x" * 20, "choices": [{"index": 0, "delta": {"content": "the"}, "finish_reason": None}]}
    data = b"data: " + json.dumps(piece).encode() + b"\n\n"

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(num_pieces):
            await asyncio.sleep(TOKEN_S)
            await response.write(data)
        await response.write_eof(b"data: [DONE]\n\n")
        return response

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        pipe.send(f"http://127.0.0.1:{runner.addresses[0][1]}")
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


async def first_byte(num: int = 300) -> dict[str, float]:
    """Milliseconds from a request on an open connection to the first byte of its stream, and of a server that
    writes at once; the engine writes its first token without delay. What it consists of, in CPU."""
    found: dict[str, float] = {}
    async with serving("words") as (url, pipe, _), connected() as session:
        found |= await _first_bytes(session, f"{url}/v1/chat/completions", num, "")
        pipe.send("stages")
        found |= await asyncio.to_thread(pipe.recv)
        found |= await _first_bytes(session, f"{url}/health", num, "health_")
    return found


async def _first_bytes(session: aiohttp.ClientSession, url: str, num: int, name: str) -> dict[str, float]:
    took = []
    for k in range(num):
        began = time.monotonic()
        asking = session.get(url) if name else session.post(url, json=body(stream=True, seed=k))
        async with asking as response:
            await response.content.readany()
            took.append((time.monotonic() - began) * 1e3)
            await response.read()
    p50, p99 = np.percentile(took[num // 10 :], [50, 99]).tolist()
    return {f"{name}p50_ms": p50, f"{name}p99_ms": p99}


async def memory(folder: Path, num: int) -> dict[str, Any]:
    """Resident bytes of the server while it answers, with records kept, and what they consist of: looked at
    while nothing goes on, and how many conversations waited for their records before."""
    samples: list[dict[str, float]] = []
    async with serving("one_call", keeps=str(folder)) as (url, pipe, pid), connected() as session:
        room = asyncio.Semaphore(32)

        async def one(k: int) -> None:
            async with room:
                await ask(session, url, seed=k, metadata={"task_id": f"t{k}"})

        step = num // 20
        for at in range(0, num, step):
            await asyncio.gather(*(one(k) for k in range(at, at + step)))
            rss = rss_bytes(pid) / 2**20
            pipe.send("memory at rest")
            facts = await asyncio.to_thread(pipe.recv)
            samples.append({"requests": at + step, "rss_mib": rss, **facts})
    by = {one["requests"]: one for one in samples}
    first, last = by[num // 5], by[num]
    seen = {f"mib_after_{at}": by[at]["rss_mib"] for at in (num // 5, num * 3 // 5, num)}
    return {
        **seen,
        "requests": num,
        "growth_mib": last["rss_mib"] - first["rss_mib"],
        "block_growth": last["python_blocks"] - first["python_blocks"],
        "samples": samples,
    }


STALL_S = 30.0


async def stalled(folder: Path, num: int, max_unwritten: int) -> dict[str, float]:
    """Resident bytes before a disk stands still, while conversations wait for it, and behind."""
    seen: dict[str, float] = {}
    child = serving("one_call", keeps=str(folder), max_unwritten=max_unwritten)
    async with child as (url, pipe, pid), connected() as session:

        async def told(asked: str) -> Any:
            pipe.send(asked)
            return await asyncio.to_thread(pipe.recv)

        async def look(name: str) -> None:
            seen[f"{name}_mib"] = rss_bytes(pid) / 2**20
            facts = await told("memory")
            seen[f"{name}_blocks"], seen[f"{name}_waiting"] = facts["python_blocks"], facts["in_flight"]

        for k in range(1000):
            await ask(session, url, seed=k)
        await told("idle")
        await look("before")
        await told("stall")
        room = asyncio.Semaphore(32)

        async def one(k: int) -> None:
            async with room:
                await ask(session, url, seed=2000 + k)

        asking = [asyncio.ensure_future(one(k)) for k in range(num)]
        _, waiting = await asyncio.wait(asking, timeout=STALL_S)
        await look("meanwhile")
        await told("on")
        await asyncio.gather(*asking)
        await told("idle")
        await look("behind")
    return {"requests": num, "held_back": len(waiting), **seen}


async def same_twice(num: int) -> dict[str, int]:
    """Fuzzed conversations, at once and streamed: how many say another thing."""
    different = 0
    async with serving("fuzzed", token_s=None) as (url, _, _), connected() as session:
        for k in range(num):
            fields = {"seed": k, "n": 1 + k % 3, **({"stop": ["STOP"]} if k % 2 else {})}
            whole = await ask(session, url, **fields)
            chunks = [c for _, c in await stream(session, url, **fields)]
            for choice in whole["choices"]:
                different += _message(chunks, choice["index"]) != choice["message"]
    return {"conversations": num, "different": different}


def _message(chunks: list[Any], k: int) -> dict[str, Any]:
    told: dict[str, Any] = {"role": "", "content": "", "reasoning_content": "", "server_tool_events": []}
    for chunk in chunks:
        happened = chunk.get("server_tool_event")
        if happened is not None and happened["index"] == k:
            told["server_tool_events"].append(happened)
        for choice in chunk["choices"]:
            if choice["index"] == k:
                for name in ("role", "content", "reasoning_content"):
                    told[name] += choice["delta"].get(name, "")
    return {name: value for name, value in told.items() if value or name == "content"}


async def stops(num: int = 20) -> dict[str, float]:
    """Seconds from a client's end to the end of its conversation, tool's child included."""
    took: list[float] = []
    async with serving("sleeps", real=True) as (url, pipe, pid), connected() as session:
        quiet = _descendants(pid)
        for _ in range(num):
            response = await session.post(f"{url}/v1/chat/completions", json=body(stream=True))
            async for line in response.content:
                if b"tool_use" in line:
                    break
            await _until(lambda: _descendants(pid) > quiet)  # the program's child begins
            began = time.monotonic()
            response.close()
            pipe.send("idle")
            ended = await asyncio.to_thread(pipe.recv)
            if _descendants(pid) > quiet:
                await _until(lambda: _descendants(pid) <= quiet)
                ended = time.monotonic()
            took.append(ended - began)
    return {"times": num, "max_s": max(took), "median_s": sorted(took)[num // 2]}


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def _descendants(pid: int) -> int:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found, todo = 0, [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += len(children)
        todo += children
    return found


@asynccontextmanager
async def impatient(url: str) -> AsyncIterator[str]:
    """The address of a proxy before `url` that ends a connection on which nothing comes for IDLE_S."""
    host, _, port = url.removeprefix("http://").partition(":")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, idle: asyncio.Timeout) -> None:
        while data := await reader.read(1 << 16):
            idle.reschedule(asyncio.get_running_loop().time() + IDLE_S)
            writer.write(data)
            await writer.drain()

    async def passes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_connection(host, int(port))
        try:
            async with asyncio.timeout(IDLE_S) as idle:
                back = asyncio.ensure_future(pump(there_reader, writer, idle))
                await asyncio.wait(
                    [asyncio.ensure_future(pump(reader, there, idle)), back],
                    return_when=asyncio.FIRST_COMPLETED,
                )
        except TimeoutError:
            pass
        finally:
            there.close()
            writer.close()

    async with await asyncio.start_server(passes, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def through_a_proxy() -> dict[str, Any]:
    """A tool that takes WAIT_S behind a proxy that bears IDLE_S of silence: streamed, and sent at once."""
    async with serving("waits") as (url, _, _), impatient(url) as before, connected() as session:
        began = time.monotonic()
        streamed, at_once = await asyncio.gather(
            stream(session, before, seed=1), ask(session, before, seed=1), return_exceptions=True
        )
        took_s = time.monotonic() - began
    lost = isinstance(streamed, BaseException) or "42" not in _message([c for _, c in streamed], 0)["content"]
    cut = isinstance(at_once, aiohttp.ClientError)
    return {"wait_s": WAIT_S, "idle_s": IDLE_S, "took_s": took_s, "lost": int(lost), "at_once_is_cut": cut}


PARTS = ("overhead", "first", "wall", "streams", "memory", "same", "stops", "proxy", "stall")


async def measure(parts: list[str], quick: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    result: dict[str, Any] = {}
    bars: list[dict[str, Any]] = []
    if "overhead" in parts:
        found = result["overhead"] = await overhead()
        for name in ("at_once", "streamed"):
            value = found[f"{name}_overhead_us"]
            bars.append(bar(f"CPU a turn beside the loop, {name}, us", value, 300.0, at_most=True))
    if "first" in parts:
        first = result["first"] = await first_byte(50 if quick else 300)
        bars.append(bar("request to first byte of a stream, p50, ms", first["p50_ms"], 10, at_most=True))
        bars.append(bar("request to first byte of a stream, p99, ms", first["p99_ms"], 10, at_most=True))
    if "wall" in parts:
        found = result["wall"] = await wall_of_agents()
        bars.append(bar("wall of 64 agents beside the loop, share", found["share"], 0.05, at_most=True))
    if "streams" in parts:
        streams = await many_streams(100 if quick else 1000)
        result["streams"] = streams
        bars.append(bar("streams lost", streams["streams"] - streams["whole"], 0, at_most=True))
        bars.append(bar("lateness of a chunk p99, all at once, s", streams["late_p99_s"], 0.05, at_most=True))
        bars.append(
            bar("lateness of a chunk p99, all going on, s", streams["steady_p99_s"], 0.05, at_most=True)
        )
    if "memory" in parts:
        with tempfile.TemporaryDirectory() as folder:
            grown = result["memory"] = await memory(Path(folder), 1000 if quick else 10_000)
        bars.append(
            bar(
                "growth of the server from a fifth to all requests, MiB",
                grown["growth_mib"],
                10,
                at_most=True,
            )
        )
    if "stall" in parts:
        for name, bound in (("bounded", DeskLimits().max_unwritten), ("unbounded", 1 << 20)):
            with tempfile.TemporaryDirectory() as folder:
                result[f"stall_{name}"] = await stalled(Path(folder), 280 if quick else 1000, bound)
    if "same" in parts:
        same = result["same"] = await same_twice(50 if quick else 1000)
        bars.append(bar("streams that differ from the answer at once", same["different"], 0, at_most=True))
    if "stops" in parts:
        stopped = result["stops"] = await stops(5 if quick else 20)
        bars.append(bar("client gone to tool's child gone, max s", stopped["max_s"], 0.2, at_most=True))
    if "proxy" in parts:
        found = result["proxy"] = await through_a_proxy()
        bars.append(bar("streams that a proxy with an idle limit ended", found["lost"], 0, at_most=True))
    return result, bars


def main() -> int:
    parser = argparse.ArgumentParser(description="What serving costs, and whether it holds.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--quick", action="store_true", help="a tenth of it, for a look")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result, bars = runner.run(measure(options.part or list(PARTS), options.quick))
    for name, value in result.items():
        print(name, json.dumps(value))
    return finish("serve", result, bars, options.out)


if __name__ == "__main__":
    sys.exit(main())
