"""Counts, rates and the remaining time; when plain output reports; the lines of real rollouts."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rocstar.engine.progress.progress import (
    Attempts,
    ProgressBoard,
    attempting,
    count_remote_group,
    duration,
    left_s,
    next_report_s,
    per_second,
    turn_ended,
    working,
)
from rocstar.engine.progress.status import StatusLine
from rocstar.engine.rollout.group import run_group
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.types import Task
from rocstar.engine.waits import waiting
from tests.fakes.scripted_policy import Reply, Request, run_virtual

from ..serve.conftest import SlowTool, call, make_agent

TASK = Task(id="a", source="s", question="q", answer="4")
CALL = call("1")


def agent(script: Callable[[Request], str | Reply]) -> Agent:
    return make_agent(script, SlowTool(), token_s=None, timeout_s=1e6)


class Watched:
    """A status line without its thread; the test moves the clock."""

    def __init__(self) -> None:
        self.now, self.out = 0.0, io.StringIO()
        self.status = StatusLine(file=self.out, clock=lambda: self.now)

    def lines(self) -> list[str]:
        return self.status.progress_text().plain.splitlines()

    def told(self, now: float) -> list[str]:
        """Return the lines reported at `now`."""
        before, self.now = len(self.out.getvalue()), now
        self.status.report_due()
        return self.out.getvalue()[before:].splitlines()


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.mark.parametrize(
    ("done", "total", "seconds", "expected"),
    [
        (25, 100, 50.0, 150.0),
        (100, 100, 50.0, None),
        (0, 100, 50.0, None),
        (5, 0, 50.0, None),
        (1, 100, 50.0, None),  # too early to say
        (2, 100, 50.0, 2450.0),
    ],
)
def test_the_time_left_follows_from_the_rate_so_far(
    done: int, total: int, seconds: float, expected: float | None
) -> None:
    assert left_s(done, total, seconds) == expected


def test_work_is_told_at_widening_intervals() -> None:
    ages, age = [], 0.0
    while age < 4000:
        age = next_report_s(age)
        ages.append(age)
    assert ages == [60, 300, 900, 1800, 2700, 3600, 4500]


def test_rates_and_durations_are_short() -> None:
    speeds = [per_second(speed) for speed in (0.0512, 3.14, 9.96, 999.0, 1234.0, 2e5)]
    assert speeds == ["0.051/s", "3.1/s", "10/s", "999/s", "1.2k/s", "200k/s"]
    assert [duration(s) for s in (0.2, 42, 187, 7500, -3)] == ["0s", "42s", "3m07s", "2h05m", "0s"]


def test_counts_cost_nothing_and_fail_nowhere_without_a_board() -> None:
    with working("x", unit="y", total=3, attempts=Attempts(total=3)) as work, attempting("s0/a/0"):
        turn_ended("s0/a/0", 5)
        work.done += 1
    assert work.done == 1 and work.attempts is not None and not work.attempts.ended


def test_a_line_says_how_much_is_done_how_fast_and_how_long_yet(watched: Watched) -> None:
    with watched.status.progress.installed(), working("demonstrations", unit="rows", total=1200) as work:
        assert watched.lines() == ["demonstrations: 0 of 1,200 rows, 0s"]
        watched.now, work.done = 20.0, 300
        assert watched.lines() == ["demonstrations: 300 of 1,200 rows (15/s), 20s, about 1m00s left"]
        with working("loading"):
            assert watched.lines()[1] == "loading: 0s"
        work.done = 1200
        assert watched.lines() == ["demonstrations: 1,200 of 1,200 rows (60/s), 20s"]
    assert not watched.lines()


def test_long_work_is_told_now_and_then_and_short_work_never(watched: Watched) -> None:
    with watched.status.progress.installed():
        with working("short"):
            assert not watched.told(59.9)
        with working("long", unit="rows", total=10) as work:
            work.done = 1
            assert not watched.told(110.0) and not watched.told(119.0)
            assert watched.told(121.0) == ["long: 1 of 10 rows (0.016/s), 1m01s, about 9m10s left"]
            assert not watched.told(122.0) and not watched.told(350.0)
            assert len(watched.told(361.0)) == 1 and not watched.told(959.0)
            assert len(watched.told(2500.0)) == 1, "what was missed is not told twice"
            assert not watched.told(2500.0)
            assert len(watched.told(2761.0)) == 1


async def test_a_publish_is_work_too(watched: Watched) -> None:
    with watched.status.waits.installed():
        async with (
            waiting("step 4", "the engine to take new weights", kind="publish", deadline=None),
            waiting("s4/a/0", "the policy", kind="generate", deadline=None),
        ):
            assert watched.told(61.0) == ["step 4: waiting for the engine to take new weights (1m01s)"]
            assert not watched.told(62.0)
    assert not watched.told(1000.0)


def seen_at(at_s: float, work: Callable[[StatusLine], Awaitable[Any]]) -> list[str]:
    """Return the lines for `work` at a time of the virtual clock."""

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        status = StatusLine(file=io.StringIO(), clock=loop.time)
        with status.progress.installed(), status.waits.installed():
            running = asyncio.ensure_future(work(status))
            await asyncio.sleep(at_s)
            lines = status.progress_text().plain.splitlines()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert not status.progress.works
        return lines

    return run_virtual(main())


def reply(request: Request) -> Reply:
    """Sibling 0 calls a tool after 10 s; the others answer after 5, 6, 7 s."""
    if request.sibling == 0:
        return Reply(text=CALL, delay_s=10.0)
    return Reply(text="4444", delay_s=4.0 + request.sibling)


def test_a_watcher_sees_attempts_tokens_and_the_slowest() -> None:
    async def rolled_out(status: StatusLine) -> None:
        with working("evaluation", unit="tasks", total=1, attempts=Attempts(total=4)):
            await run_group(agent(reply), TASK, size=4, seed=0, step=3)

    assert seen_at(4.0, rolled_out) == [
        "evaluation: 0 of 1 tasks, 0 of 4 attempts, 4 in flight, 4s",
        "  slowest: s3/a/0, turn 1, 4s, waiting for the policy (4s)",
    ]
    tokens = 3 * 5 + len(CALL) + 1
    assert seen_at(30.0, rolled_out) == [
        "evaluation: 0 of 1 tasks, 3 of 4 attempts, 1 in flight "
        f"(0.1/s, {tokens / 30:.2g} tokens/s), 30s, about 10s left",
        "  slowest: s3/a/0, turn 1, 30s, waiting for its tools (20s)",
    ]


def test_of_those_that_began_together_the_slowest_is_the_one_that_moved_first() -> None:
    now = [0.0]
    board, attempts = ProgressBoard(lambda: now[0]), Attempts(total=3)
    with board.installed(), working("step 1", attempts=attempts):
        with attempting("early"), attempting("late"):
            now[0] = 5.0
            turn_ended("early", 1)
            with attempting("new"):
                slowest = attempts.slowest()
                assert slowest is not None and slowest.name == "late"
        assert attempts.slowest() is None and attempts.ended == 3


def test_what_another_node_rolled_out_is_counted() -> None:
    group = run_virtual(run_group(agent(lambda _: "44"), TASK, size=2, seed=0, step=0))
    attempts = Attempts(total=8)
    with ProgressBoard().installed(), working("step 1", attempts=attempts):
        count_remote_group(group)
    assert (attempts.ended, attempts.tokens) == (2, 6), "two characters and the end"


def test_work_that_goes_on_from_step_to_step_counts_its_tokens_by_step(watched: Watched) -> None:
    """Ahead of the learner: the groups in flight outlive the wait for a batch."""
    attempts, ready = Attempts(clock=lambda: watched.now), [3, 4]
    with watched.status.progress.installed():
        with working("step 1", unit="groups", attempts=attempts, count=lambda: (ready[0], ready[1])):
            with attempting("s1/a/0"):
                turn_ended("s1/a/0", 100)
        watched.now = 50.0
        with working("step 2", unit="groups", attempts=attempts, count=lambda: (ready[0], ready[1])):
            turn_ended("s1/a/0", 30)
            watched.now = 60.0
            assert watched.lines() == [
                "step 2: 3 of 4 groups, 0 attempts in flight (0.3/s, 3 tokens/s), 10s, about 3s left"
            ]
