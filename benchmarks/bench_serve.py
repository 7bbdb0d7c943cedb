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
import itertools
import json
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import uvloop

sys.path.insert(0, str(Path(__file__).parent))
from sandbox_bench.report import bar, finish

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.inference.base import Sampling
from rocstar.engine.rollout.rollout import Agent, RolloutLimits, run_trajectory
from rocstar.engine.serve.conversation import Unjudged
from rocstar.engine.serve.desk import DeskLimits
from rocstar.engine.serve.endpoint import ServeOptions
from rocstar.engine.serve.kept import KeptConversations
from rocstar.engine.serve.opened import open_endpoint
from rocstar.engine.testing.policy import ByteTokenizer, Reply, Request, ScriptedPolicy
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.tools.python import PYTHON_TOOL, PythonTool
from rocstar.engine.types import Task, TrajectoryKey
from rocstar.sandbox import SandboxPool
from rocstar.sandbox.testing import FakeSandbox, ok
from rocstar.sandbox.types import Limits

TURNS = 8
TOKENIZER = ByteTokenizer(corpus=["x = 1 + 1\nprint(x)", "the answer is", "code input arguments name"] * 4)
CODE = "x = 6 * 7\nprint(x)"
CALL = json.dumps({"name": PYTHON_TOOL, "arguments": {"code": CODE, "input": ""}})
SAID = f"<think>I compute it.</think>Now: <tool_call>{CALL}</tool_call>"
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
    return Reply(text="the answer is " * 8)


SCRIPTS = {"turns": turns_of, "one_call": one_call, "fuzzed": fuzzed, "words": words, "sleeps": sleeps}


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


def child(pipe: Connection, script: str, token_s: float | None, keeps: str, real: bool) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_for(pipe, script, token_s, keeps, real))


async def serve_for(pipe: Connection, script: str, token_s: float | None, keeps: str, real: bool) -> None:
    """Serve until the pipe says otherwise; it is told of idleness with the clock of it."""
    loop = asyncio.get_running_loop()
    async with SandboxPool(["stdlib"]) if real else _nothing() as pool:
        sandbox = pool if real else FakeSandbox(lambda request: ok("42\n"))
        agent = make_agent(script, token_s, sandbox)
        if not real:
            sandbox.requests = _Forgetful()
        agent.inference.requests = _Forgetful()  # type: ignore[attr-defined]
        agent.inference.released = _Forgetful()  # type: ignore[attr-defined]
        options = ServeOptions(desk=DeskLimits(max_choices=4096))
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
        if kept is not None:
            await kept.__aexit__(None, None, None)


class _Forgetful(list[Any]):
    """What the stand-ins note would grow with every request."""

    def append(self, item: Any) -> None:
        pass


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield


async def direct(agent: Agent) -> float:
    """CPU seconds of the process for DIRECT conversations without a server."""
    began = time.process_time()
    for k in range(DIRECT):
        task = Task(id=f"t{k}", source="bench", question=QUESTION, answer="")
        await run_trajectory(agent, task, TrajectoryKey(seed=k, step=0, task_id=f"t{k}", sibling=0))
    return time.process_time() - began


DIRECT = 200


@asynccontextmanager
async def serving(
    script: str, *, token_s: float | None = None, keeps: str = "", real: bool = False
) -> AsyncIterator[tuple[str, Connection, int]]:
    """Address, pipe and process id of a child that serves."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(theirs, script, token_s, keeps, real))
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


async def many_streams(num: int = 1000) -> dict[str, float]:
    """So many streams at once: how many came whole, and how late their chunks were."""
    token_s = 0.25
    async with serving("words", token_s=token_s) as (url, _, _), connected() as session:
        whole = await ask(session, url, seed=1)
        text = whole["choices"][0]["message"]["content"]
        streams = await asyncio.gather(
            *(stream(session, url, seed=k) for k in range(num)), return_exceptions=True
        )
    late: list[float] = []
    good = 0
    for chunks in streams:
        if isinstance(chunks, BaseException):
            continue
        said = [(at, c["choices"][0]["delta"].get("content")) for at, c in chunks]
        good += "".join(one or "" for _, one in said) == text
        times = [at for at, one in said if one]
        late += [b - a - token_s for a, b in itertools.pairwise(times)]
    p50, p99 = np.percentile(late, [50, 99]).tolist() if late else (0.0, 0.0)
    return {"streams": num, "whole": good, "late_p50_s": p50, "late_p99_s": p99}


async def memory(folder: Path, num: int) -> dict[str, float]:
    """Resident bytes of the server while it answers, with records kept."""
    seen: dict[str, float] = {}
    async with serving("one_call", keeps=str(folder)) as (url, _, pid), connected() as session:
        at, room = 0, asyncio.Semaphore(32)

        async def one(k: int) -> None:
            async with room:
                await ask(session, url, seed=k, metadata={"task_id": f"t{k}"})

        for share in (0.2, 0.6, 1.0):
            upto = int(num * share)
            await asyncio.gather(*(one(k) for k in range(at, upto)))
            at = upto
            seen[f"mib_after_{upto}"] = rss_bytes(pid) / 2**20
    first, *_, last = seen.values()
    return {**seen, "requests": num, "growth_mib": last - first}


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


PARTS = ("overhead", "wall", "streams", "memory", "same", "stops")


async def measure(parts: list[str], quick: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    result: dict[str, Any] = {}
    bars: list[dict[str, Any]] = []
    if "overhead" in parts:
        found = result["overhead"] = await overhead()
        for name in ("at_once", "streamed"):
            value = found[f"{name}_overhead_us"]
            bars.append(bar(f"CPU a turn beside the loop, {name}, us", value, 300.0, at_most=True))
    if "wall" in parts:
        found = result["wall"] = await wall_of_agents()
        bars.append(bar("wall of 64 agents beside the loop, share", found["share"], 0.05, at_most=True))
    if "streams" in parts:
        streams = await many_streams(100 if quick else 1000)
        result["streams"] = streams
        bars.append(bar("streams lost", streams["streams"] - streams["whole"], 0, at_most=True))
        bars.append(bar("lateness of a chunk p99, s", streams["late_p99_s"], 0.05, at_most=True))
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
    if "same" in parts:
        same = result["same"] = await same_twice(50 if quick else 1000)
        bars.append(bar("streams that differ from the answer at once", same["different"], 0, at_most=True))
    if "stops" in parts:
        stopped = result["stops"] = await stops(5 if quick else 20)
        bars.append(bar("client gone to tool's child gone, max s", stopped["max_s"], 0.2, at_most=True))
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
