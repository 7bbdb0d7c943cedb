"""Chaos: zygotes and the supervisor are killed with SIGKILL while a pool is under load.

    python benchmarks/chaos_sandbox.py

    load    4 lanes of run_batch, 16 programs each, every program with its own number
    killer  every --every seconds one victim: a zygote, then the supervisor, in turn
    probe   right after a kill: one new call; recovery = from the kill to its answer

No stateless call may be lost (end in an error), none answered twice, every recovery within 2 s. A session
held open across a kill of the supervisor must raise SessionLost, not answer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from report import claim, finish, result_parser

from rocstar.sandbox import proctree
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import BatchSandbox, ExecRequest, ExecResult, SandboxError, Session, SessionLost

LANES, BATCH = 4, 16
RECOVERY_BAR_S = 2.0
PROBE_TIMEOUT_S = 60.0


@dataclass(eq=False)
class Load:
    """Batches of numbered programs until `stopping`.

    Attributes:
        asked: the number of programs so far.
        answers: how often each number was answered.
        lost, wrong: those that ended in a SandboxError, or in the answer of another program.
    """

    sandbox: BatchSandbox
    asked: int = 0
    stopping: bool = False
    answers: Counter[int] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    finished_at: list[float] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """Numbers that were never answered."""
        return self.asked - len(self.answers)

    @property
    def twice(self) -> int:
        return sum(count > 1 for count in self.answers.values())

    @property
    def longest_gap_s(self) -> float:
        """Between two answers."""
        gaps = (b - a for a, b in zip(self.finished_at, self.finished_at[1:], strict=False))
        return max(gaps, default=0.0)

    async def lane(self) -> None:
        while not self.stopping:
            first, self.asked = self.asked, self.asked + BATCH
            requests = [ExecRequest(code=f"print({first + index})") for index in range(BATCH)]
            async for index, outcome in self.sandbox.run_batch(requests):
                self.take(first + index, outcome)

    def take(self, number: int, outcome: ExecResult | SandboxError) -> None:
        self.answers[number] += 1
        self.finished_at.append(time.monotonic())
        if isinstance(outcome, SandboxError):
            self.lost.append(f"{number}: {outcome.kind}: {outcome}")
        elif outcome.stdout != f"{number}\n":
            self.wrong.append(f"{number}: {outcome.status} {outcome.stdout[:80]!r}")


def victim(pool: SandboxPool, name: str) -> int:
    """The pid of the living supervisor, or of the newest zygote."""
    return pool.supervisor_pid if name == "supervisor" else pool.zygotes["stdlib"][-1]


async def probe(pool: SandboxPool, killed_at: float, number: int) -> dict[str, Any]:
    deadline = asyncio.get_running_loop().time() + PROBE_TIMEOUT_S
    try:
        result = await pool.run(ExecRequest(code=f"print({number})"), deadline=deadline)
    except SandboxError as error:
        return {"recovery_s": time.monotonic() - killed_at, "failure": f"{error.kind}: {error}"}
    failure = None if result.stdout == f"{number}\n" else f"{result.status} {result.stdout!r}"
    return {"recovery_s": time.monotonic() - killed_at, "failure": failure}


async def session_after(session: Session) -> str:
    """The answer of a session after a kill: an output, or the kind of its error."""
    try:
        result = await session.run("print(state)")
    except SessionLost as error:
        return f"lost: {error.reason}"
    except SandboxError as error:
        return f"{error.kind}"
    return f"answered {result.stdout.strip()!r}"


async def one_kill(pool: SandboxPool, name: str, number: int, load: Load) -> dict[str, Any]:
    session = await pool.open_session()
    await session.run("state = 41")
    pid = victim(pool, name)
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    event = {"victim": name, **await probe(pool, killed_at, number)}
    event["replaced"] = victim(pool, name) != pid
    event["session"] = await session_after(session)
    await session.close()
    later = [at for at in load.finished_at if at > killed_at]
    event["first_load_answer_s"] = min(later) - killed_at if later else None
    return event


async def chaos(options: argparse.Namespace) -> dict[str, Any]:
    events = []
    async with SandboxPool(("stdlib",)) as pool:
        load = Load(pool)
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(LANES):
                group.create_task(load.lane())
            try:
                for number in range(2 * options.kills):
                    await asyncio.sleep(options.every)
                    name = ("zygote", "supervisor")[number % 2]
                    event = await one_kill(pool, name, 10**9 + number, load)
                    events.append(event)
                    print(f"{name}: {event}", flush=True)
                await asyncio.sleep(options.every)
            finally:
                load.stopping = True
        seconds = time.monotonic() - started
    return {"events": events, "load": load, "seconds": seconds}


def report(options: argparse.Namespace, outcome: dict[str, Any], processes_left: int) -> int:
    load, events = outcome["load"], outcome["events"]
    claims = []
    for name in ("zygote", "supervisor"):
        slowest = max(event["recovery_s"] for event in events if event["victim"] == name)
        claims.append(claim(f"slowest recovery after the kill of a {name}", slowest, "s", at_most=RECOVERY_BAR_S))
    for text in (load.lost + load.wrong)[:10]:
        print(f"not right: {text}")
    answered = sum("answered" in event["session"] for event in events if event["victim"] == "supervisor")
    kept = sum(not event["replaced"] for event in events)
    failed = sum(bool(event["failure"]) for event in events)
    lost = len(load.lost) + load.missing
    claims += [
        claim("calls lost to kills of zygotes and supervisors", lost, "calls", at_most=0),
        claim("calls answered wrongly under kills", len(load.wrong), "calls", at_most=0),
        claim("calls answered twice under kills", load.twice, "calls", at_most=0),
        claim("killed processes that were not replaced", kept, "processes", at_most=0),
        claim("failed calls right after a kill", failed, "calls", at_most=0),
        claim("sessions that answered after their supervisor died", answered, "sessions", at_most=0),
        claim("processes left after the pool closed", processes_left, "processes", at_most=0),
    ]
    result = {
        "calls": load.asked,
        "seconds": round(outcome["seconds"], 2),
        "longest_gap_between_answers_s": round(load.longest_gap_s, 3),
        "events": events,
        "lost": load.lost[:20],
    }
    return finish("sandbox_chaos", result, claims, options.out)


def main() -> int:
    parser = result_parser(__doc__)
    parser.add_argument("--kills", type=int, default=10, help="of each victim")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between kills")
    options = parser.parse_args()
    outcome = asyncio.run(chaos(options))
    return report(options, outcome, len(proctree.tree([os.getpid()])) - 1)


if __name__ == "__main__":
    sys.exit(main())
