"""Two real servers behind the fleet; one of them fails in the middle of a rollout.

It is killed or stopped: its whole tree, or its scheduler alone, whose HTTP side still answers. Each
trajectory is there once, was scored, and consists of the tokens that the servers answered it with, each once;
every request behind a failure began with the ids that there were. Answers of 500: test_fleet_failures.py.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rocstar.engine.fleet.fleet import Fleet, FleetLimits
from rocstar.engine.inference.base import Generation, Inference, InferenceError
from rocstar.engine.inference.guard import descendants
from rocstar.engine.inference.sglang.replica import Replica
from rocstar.engine.scheduling.policies import make_policy
from rocstar.engine.types import Group, Origin

from ..fakes.invariants import check_schedule
from .serving import MEAN_BOUND, ask, distance, off_reference, prompt, roll_out, running, server, summary

pytestmark = pytest.mark.asyncio(loop_scope="session")
NUM_TASKS = 12
"""Of four siblings each: long enough for a fault to strike in the middle."""
BACK_S = 600.0


@dataclass(slots=True, kw_only=True)
class Call:
    """One request of a turn to one server, and what became of it."""

    replica: int
    ids: tuple[int, ...]
    answer: Generation | None = None
    error: str | None = None


@dataclass(slots=True, kw_only=True)
class Book:
    """All calls of each trajectory, in order. At most one of them is under way at a time."""

    calls: dict[str, list[Call]] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)

    def check(self, groups: Sequence[Group]) -> None:
        """Each policy token was answered exactly once; no request lost a token that there was."""
        assert not self.live
        for t in (t for group in groups for t in group.trajectories):
            answered: list[int] = []
            for call in self.calls[str(t.key)]:
                begun = t.ids[: len(call.ids)].tolist()
                assert list(call.ids) == begun, "it did not go on from the trajectory's tokens"
                if call.answer is not None:
                    end = len(call.ids) + len(call.answer.ids)
                    assert list(call.answer.ids) == t.ids[len(call.ids) : end].tolist()
                    answered += range(len(call.ids), end)
            written = [k for s in t.segments if s.origin is Origin.policy for k in range(s.start, s.end)]
            assert answered == written, "a token was lost, or written twice"

    def moved(self) -> int:
        """Turns that failed on one server and were answered by the other."""
        pairs = [p for calls in self.calls.values() for p in itertools.pairwise(calls)]
        return sum(
            a.error is not None and b.answer is not None and a.replica != b.replica and a.ids == b.ids
            for a, b in pairs
        )

    def errors(self) -> set[str]:
        return {call.error for calls in self.calls.values() for call in calls if call.error is not None}


class Witness:
    """A replica whose calls are written into the book."""

    def __init__(self, index: int, replica: Replica, book: Book) -> None:
        self.index, self.replica, self.book = index, replica, book

    async def generate(self, ids: list[int], *, request_id: str, **request: Any) -> Generation:
        assert request_id not in self.book.live, "two requests of one trajectory at once"
        self.book.live.add(request_id)
        call = Call(replica=self.index, ids=tuple(ids))
        self.book.calls.setdefault(request_id, []).append(call)
        try:
            call.answer = await self.replica.generate(ids, request_id=request_id, **request)
            return call.answer
        except InferenceError as error:
            call.error = error.kind
            raise
        except asyncio.CancelledError:  # by the fleet, when the replica goes down
            call.error = "cut"
            raise
        finally:
            self.book.live.discard(request_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.replica, name)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(python: Path, policy: Path) -> AsyncIterator[list[Replica]]:
    """Two servers of the policy. A scheduler that stands still for 8 s has hung."""
    options: dict[str, Any] = {"kv_tokens": 16384, "hang_timeout_s": 8.0, "control_timeout_s": 8.0}
    cores = os.cpu_count() or 1
    made = [server(python, policy, f"pair-{k}", core=str(k % cores), **options) for k in (0, 1)]
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(replica) for replica in made))
        yield made


async def fly(
    pair: list[Replica], policy: Path, *, seed: int, fault: Callable[[], Any]
) -> tuple[list[Group], Fleet, Book]:
    """The groups rolled out behind the fleet, `fault` striking replica 0 with requests in flight on it."""
    book = Book()
    seats: list[Any] = [Witness(k, replica, book) for k, replica in enumerate(pair)]

    async def restart(index: int) -> Inference:
        await pair[index].restart()
        return seats[index]

    limits = FleetLimits(failures=3, turn_timeout_s=300.0)
    async with Fleet(seats, policy=make_policy("predictive"), limits=limits, restart=restart) as fleet:
        rolling = asyncio.create_task(roll_out(fleet, policy, seed=seed, num_tasks=NUM_TASKS))
        await running(pair[0], 8)
        fault()
        groups = await rolling
        check_schedule(fleet.scheduler)
        assert not fleet.scheduler.state.trajectories
        return groups, fleet, book


def server_tree(replica: Replica) -> list[int]:
    """The server's processes, without the guard above them."""
    assert replica._server is not None
    return descendants(replica._server.pid)


def scheduler_of(replica: Replica) -> int:
    for pid in server_tree(replica):
        if b"scheduler" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError("no process is called scheduler")


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def strike(name: str, replica: Replica) -> None:
    match name:
        case "killed":
            os.kill(server_tree(replica)[0], signal.SIGKILL)
        case "stopped":
            for pid in server_tree(replica):
                os.kill(pid, signal.SIGSTOP)
        case "scheduler stopped":
            os.kill(scheduler_of(replica), signal.SIGSTOP)


@pytest.mark.parametrize("name", ["killed", "stopped", "scheduler stopped"])
async def test_a_lost_servers_trajectories_go_on_on_the_other(
    pair: list[Replica], policy: Path, figures: Any, name: str
) -> None:
    """And the server comes back by itself, with the weights of its version and nothing of the old tree."""
    before = server_tree(pair[0])
    started = time.monotonic()
    groups, fleet, book = await fly(pair, policy, seed=11, fault=lambda: strike(name, pair[0]))
    took = time.monotonic() - started
    found = summary(groups)
    figures(f"pair_{name.replace(' ', '_')}", **found, seconds=round(took, 1), moved=book.moved())
    figures(f"pair_{name.replace(' ', '_')}", errors=sorted(book.errors()))
    book.check(groups)
    assert (found["trajectories"], found["failed"]) == (4 * NUM_TASKS, 0)
    assert fleet.replicas.counts.replicas_lost == 1 and book.moved() >= 8
    assert off_reference({0: policy}, [t for t in groups[0].trajectories], 1.0).mean() < MEAN_BOUND

    await pair[0].wait_ready(asyncio.get_running_loop().time() + BACK_S)
    assert not set(before) & set(server_tree(pair[0])) and not [pid for pid in before if is_alive(pid)]
    again = await ask(pair[0], prompt(400), "back", 50)
    assert again.version_spans == ((0, 50, 0),)
    assert distance(policy, prompt(400), again, 0, 50).mean() < MEAN_BOUND
