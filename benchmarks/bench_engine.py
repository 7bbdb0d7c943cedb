"""What the rollout engine costs by itself: 4,096 trajectories at once in one process, everything else faked.

    python benchmarks/bench_engine.py                # 4 minutes; writes benchmarks/results/engine.json
    python benchmarks/bench_engine.py --smoke        # seconds; writes nothing

Real: the fleet with its scheduler, the rollout coroutines, tool-call parsing, the chat suffix, the tool box,
deadlines, task groups, the event loop. Fake: replicas (they wait, and answer scripted token ids), the sandbox
and the judge (they wait, and agree). A turn has `--turn-tokens` tokens on average.

`cpu_us_per_turn` is the process's CPU time from the first to the last moment over the number of turns, fakes
included. "fakes alone" is a run without any engine: a bare loop asks the same fakes for the same turns at the
same pace. The engine's own figure is the difference, and all three are printed. Event-loop lag: a task sleeps
5 ms again and again and notes how much later it wakes. CPU time on a busy machine is too high by the caches
that others empty; lag on a busy machine is worth nothing.

Two paces, set by the time of a token: "slow" is that of a real server (20 ms), at which the loop mostly
sleeps and every wake finds cold caches; at "half busy" (2 ms) it works about half of the time, as one does
that is near its capacity.

Then the scheduler alone, per policy: CPU time per turn of 4,096 trajectories on 16 replicas, where KV binds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import heapq
import json
import os
import random
import sys
import time
import zlib
from collections.abc import Awaitable, Coroutine
from pathlib import Path
from typing import Any

import uvloop
from sandbox_bench.report import ROOT, bar, finish
from scheduling.peers import POLICIES

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.fleet.fleet import Fleet
from rocstar.engine.fleet.scheduler import Scheduler
from rocstar.engine.garbage import settled_garbage
from rocstar.engine.inference.base import Inference, Sampling
from rocstar.engine.rollout.group import all_groups, run_group
from rocstar.engine.rollout.rollout import Agent, RolloutLimits
from rocstar.engine.scheduling.events import (
    Event,
    Grant,
    Left,
    LoadSeen,
    ReplicaUp,
    Submitted,
    TurnEnded,
    TurnReady,
)
from rocstar.engine.scheduling.policies import make_policy
from rocstar.engine.testing.policy import ByteTokenizer
from rocstar.engine.testing.replica import FakeReplica, Scripts
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.tools.python import PYTHON_SCHEMA, PYTHON_TOOL, PythonTool
from rocstar.engine.types import Attempt, Outcome, Scored, Task
from rocstar.sandbox.testing import ok
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits

SIBLINGS = 32
MAX_CPU_US, MAX_LAG_MS = 250.0, 50.0
FAKES_ALONE = "fakes alone"
QUESTION_TOKENS, RESULT_TOKENS = 600, 100
"""Of a prompt and of a tool's result, as "fakes alone" has them."""
WORDS = ["so", "the", "sum", "of", "both", "is", "even", "and", "we", "check", "it", "with", "a", "program"]


class WaitingSandbox:
    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        await asyncio.sleep(0.3)
        return ok("42\n")


class WaitingJudge:
    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        return Scored(reward=1.0, method="fake")


def scripts(chat: ChatFormat, tokenizer: ByteTokenizer, turn_tokens: int) -> Scripts:
    """About 2.75 calls per trajectory, turns of very different lengths; made before the clock runs."""
    stop = min(chat.stop_ids)
    rng = random.Random(7)
    call = json.dumps({"name": PYTHON_TOOL, "arguments": {"code": "x = 6 * 7\nprint(x)"}})
    suffix = tokenizer.encode(f"<tool_call>\n{call}\n</tool_call>")
    words = [tokenizer.encode(" " + word) for word in WORDS]

    def turn(calls: bool) -> list[int]:
        length = max(20, int(rng.lognormvariate(0.0, 0.5) * turn_tokens * 0.88))
        ids: list[int] = []
        while len(ids) < length:
            ids += rng.choice(words)
        return [*ids[:length], *(suffix if calls else []), stop]

    kinds = [[turn(True) for _ in range(rng.choice((1, 2, 3, 5)))] + [turn(False)] for _ in range(64)]
    return Scripts(lambda request_id: kinds[zlib.crc32(request_id.encode()) % len(kinds)])


async def measure_lag(lags_s: list[float]) -> None:
    while True:
        due = time.perf_counter() + 0.005
        await asyncio.sleep(0.005)
        lags_s.append(time.perf_counter() - due)


async def fakes_alone(
    servers: list[FakeReplica], chat: ChatFormat, script: Scripts, trajectories: int
) -> int:
    """What the fakes are asked in a rollout, asked by a loop that does nothing else; the number of turns."""
    sandbox, loop = WaitingSandbox(), asyncio.get_running_loop()
    request = ExecRequest(code="", stdin="", limits=Limits(), flavour="stdlib", seed=0)

    async def one(number: int) -> int:
        who, server = f"s0/t{number // SIBLINGS}/{number % SIBLINGS}", servers[number % len(servers)]
        ids, deadline = [0] * QUESTION_TOKENS, loop.time() + 3600.0
        turns = len(script.turns_of(who))
        for turn in range(turns):
            generation = await server.generate(
                ids,
                max_new_tokens=16384,
                stop_ids=chat.stop_ids,
                sampling=Sampling(),
                seed=0,
                request_id=who,
                deadline=deadline,
            )
            ids += generation.ids
            if turn < turns - 1:
                await sandbox.run(request, deadline=deadline)
                ids += [0] * RESULT_TOKENS
        server.release(who)
        return turns

    return sum(await asyncio.gather(*map(one, range(trajectories))))


async def rollout(agent: Agent, trajectories: int) -> int:
    """Roll everything out at once; the number of turns."""
    tasks = [
        Task(id=f"t{k}", source="s", question=f"What is {k} times {k + 1}? " * 12, answer="42")
        for k in range(trajectories // SIBLINGS)
    ]
    turns = 0
    for group in await all_groups(lambda task: run_group(agent, task, size=SIBLINGS, seed=1, step=0), tasks):
        assert len(group.scored) == SIBLINGS, [t.outcome for t in group.trajectories][:3]
        turns += sum(len(t.turns) for t in group.trajectories)
    return turns


async def engine(
    trajectories: int, replicas: int, turn_tokens: int, token_s: float, policy: str
) -> dict[str, Any]:
    """One run through the fleet, straight to one replica where `policy` is empty, or FAKES_ALONE."""
    tokenizer = ByteTokenizer(corpus=[" ".join(WORDS)] * 50, vocab_size=600)
    chat = ChatFormat(tokenizer, load_template("compact", None), [PYTHON_SCHEMA])
    script = scripts(chat, tokenizer, turn_tokens)
    servers = [FakeReplica(script, kv_tokens=1 << 22, token_s=token_s) for _ in range(replicas)]
    tools = Dispatcher(
        tools=[PythonTool(limits=Limits(), flavour="stdlib", style="rstar2")],
        sandbox=WaitingSandbox(),
        max_parallel_calls=4,
    )
    limits = RolloutLimits(max_response_tokens=16384, max_turns=16, max_tool_tokens=256, timeout_s=3600.0)
    lags_s: list[float] = []

    async def watched(turns: Awaitable[int]) -> int:
        lag = asyncio.create_task(measure_lag(lags_s))
        try:
            return await turns
        finally:
            lag.cancel()

    def run(inference: Inference) -> Coroutine[Any, Any, int]:
        agent = Agent(
            inference=inference,
            chat=chat,
            tools=tools,
            judge=WaitingJudge(),
            limits=limits,
            sampling=Sampling(),
        )
        return rollout(agent, trajectories)

    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    if policy == FAKES_ALONE:
        turns = await watched(fakes_alone(servers, chat, script, trajectories))
    elif policy:
        async with Fleet(servers, policy=make_policy(policy, POLICIES)) as fleet:
            turns = await watched(run(fleet))
    else:
        turns = await watched(run(servers[0]))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    lags_s.sort()
    return {
        "policy": policy or "none: one replica, no fleet",
        "token_s": token_s,
        "trajectories": trajectories,
        "replicas": replicas if policy else 1,
        "turns": turns,
        "cpu_us_per_turn": 1e6 * cpu / turns,
        "wall_s": wall,
        "loop_busy_share": cpu / wall,
        "lag_p50_ms": 1e3 * lags_s[len(lags_s) // 2],
        "lag_p99_ms": 1e3 * lags_s[int(0.99 * len(lags_s))],
        "lag_max_ms": 1e3 * lags_s[-1],
        "lag_samples": len(lags_s),
    }


class Clockless:
    """Drives a scheduler as fast as it decides: a granted turn ends after as many ticks as it has tokens."""

    def __init__(self, scheduler: Scheduler, trajectories: int, replicas: int) -> None:
        rng = random.Random(3)
        self.scheduler, self.cpu_s = scheduler, 0.0
        self.left = {
            f"s0/t{k // SIBLINGS}/{k % SIBLINGS}": [
                rng.randint(100, 3000) for _ in range(rng.choice((2, 3, 4, 6)))
            ]
            for k in range(trajectories)
        }
        self.turns = sum(map(len, self.left.values()))
        self.context = dict.fromkeys(self.left, 600)
        self.heap: list[tuple[int, int, str]] = []
        self.now, self.count = 0, 0
        # Half of what all of them hold when they are half done.
        self.kv_tokens = trajectories * 1600 // replicas
        for replica in range(replicas):
            self.tell(ReplicaUp(replica=replica, kv_tokens=self.kv_tokens))

    def tell(self, event: Event) -> None:
        started = time.process_time()
        commands = self.scheduler.handle(event)
        self.cpu_s += time.process_time() - started
        for command in commands:
            if isinstance(command, Grant):
                self.push(self.now + self.left[command.traj][0], command.traj)

    def push(self, at: int, traj: str) -> None:
        self.count += 1
        heapq.heappush(self.heap, (at, self.count, traj))

    def run(self) -> float:
        """CPU microseconds per turn."""
        for traj in self.left:
            group = traj.rpartition("/")[0]
            self.tell(Submitted(traj=traj, group=group, stage="rl", prompt_tokens=600, max_tokens=18_400))
        for traj in self.left:
            self.tell(TurnReady(traj=traj, context_tokens=600))
        waiting: set[str] = set()
        reported = 0
        while self.heap:
            self.now, _, traj = heapq.heappop(self.heap)
            if self.now - reported > 100:
                reported = self.now
                for view in list(self.scheduler.observation.replicas.values()):
                    used = min(self.kv_tokens, view.resident_tokens)
                    self.tell(
                        LoadSeen(replica=view.replica, used_tokens=used, running=view.running, waiting=0)
                    )
            if traj in waiting:
                waiting.discard(traj)
                self.tell(TurnReady(traj=traj, context_tokens=self.context[traj]))
                continue
            tokens = self.left[traj].pop(0)
            self.context[traj] += tokens
            self.tell(TurnEnded(traj=traj, new_tokens=tokens))
            if not self.left[traj]:
                self.tell(Left(traj=traj))
            else:
                self.context[traj] += 80
                waiting.add(traj)
                self.push(self.now + 20, traj)
        assert not self.scheduler.observation.trajectories
        return 1e6 * self.cpu_s / self.turns


def run_loop(main: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def measure(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """All runs, and by pace what a turn costs: fakes, engine, both; the least of the repeats."""
    runs: list[dict[str, Any]] = []
    paces: list[dict[str, Any]] = []

    def run(policy: str, token_s: float) -> dict[str, Any]:
        one = run_loop(engine(options.trajectories, options.replicas, options.turn_tokens, token_s, policy))
        print(json.dumps(one), flush=True)
        runs.append(one)
        return one

    for pace, token_s, repeats in (
        ("half busy", options.busy_token_s, options.repeats),
        ("slow", options.token_s, 1),
    ):
        pairs = [(run(FAKES_ALONE, token_s), run("predictive", token_s)) for _ in range(repeats)]
        fakes = min(one["cpu_us_per_turn"] for one, _ in pairs)
        both = min(one["cpu_us_per_turn"] for _, one in pairs)
        lag_ms = min(one["lag_p99_ms"] for _, one in pairs)
        costs = {"both_us": both, "fakes_us": fakes, "engine_us": both - fakes, "lag_p99_ms": lag_ms}
        paces.append({"pace": pace, **costs})
        print(
            f"{pace}: {both:.0f} us per turn - fakes alone {fakes:.0f} = engine {both - fakes:.0f}",
            flush=True,
        )
    for policy in ("least_inflight", ""):
        run(policy, options.busy_token_s)
    return runs, paces


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="256 trajectories, nothing written")
    parser.add_argument("--trajectories", type=int, default=4096)
    parser.add_argument("--replicas", type=int, default=16)
    parser.add_argument("--turn-tokens", type=int, default=400)
    parser.add_argument("--token-s", type=float, default=0.02, help="at the slow pace")
    parser.add_argument("--busy-token-s", type=float, default=0.002, help="at the half busy pace")
    parser.add_argument("--repeats", type=int, default=3, help="of the half busy pace; the slow one has one")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "engine.json")
    options = parser.parse_args()
    if options.smoke:
        options.trajectories, options.repeats, options.out = 256, 1, None
        options.token_s = options.busy_token_s = 0.0005
    with settled_garbage():
        runs, paces = measure(options)
    decisions = {}
    for policy in POLICIES:
        host = Clockless(Scheduler(make_policy(policy, POLICIES)), options.trajectories, options.replicas)
        decisions[policy] = host.run()
        print(f"{policy:15s} {decisions[policy]:7.1f} us per turn", flush=True)
    bars = []
    for one in paces:
        pace = one["pace"]
        bars += [
            bar(f"engine CPU per turn, us, {pace}", one["engine_us"], MAX_CPU_US, at_most=True),
            bar(f"the same and its fakes, us, {pace}", one["both_us"], MAX_CPU_US, at_most=True),
            bar(f"event-loop lag p99, ms, {pace}", one["lag_p99_ms"], MAX_LAG_MS, at_most=True),
        ]
    result = {
        "settings": {"turn_tokens": options.turn_tokens, "siblings": SIBLINGS},
        "paces": paces,
        "runs": runs,
        "scheduler_us_per_turn": decisions,
        "note": "least of the repeats: other processes only ever add; one event loop, uvloop",
    }
    return finish("engine", result, bars, options.out)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
