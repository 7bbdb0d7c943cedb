"""A stall is seen, named and acted upon; progress is left alone. Time is virtual."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from rocstar.engine.rollout.watchdog import Stall, StalledError, expire_oldest, watch
from rocstar.engine.waits import WaitBoard, waiting
from tests.fakes.scripted_policy import on_virtual_time, run_virtual


async def guarded(work: Callable[[], asyncio.Future[None]] | None, remedies: list[object], told: list[str]) -> None:
    """`work` beside a watchdog with 10 s of patience."""
    board = WaitBoard(asyncio.get_running_loop().time)
    with board.installed():
        async with asyncio.TaskGroup() as group:
            dog = group.create_task(
                watch(board, stall_s=10.0, remedies=remedies, tell=told.append)  # type: ignore[arg-type]
            )
            if work is not None:
                await group.create_task(work())  # type: ignore[arg-type]
            dog.cancel()


async def stuck() -> None:
    async with (
        waiting("the learner", "the groups of a batch", kind="batch", deadline=None),
        waiting("s1/task/0", "replica 2", kind="generate", deadline=1e6),
    ):
        await asyncio.get_running_loop().create_future()


async def slow_but_alive() -> None:
    for _ in range(20):
        async with waiting("s1/task/0", "the sandbox", kind="tool", deadline=None):
            await asyncio.sleep(9.0)


@on_virtual_time
async def test_the_board_holds_a_wait_exactly_while_it_lasts() -> None:
    board = WaitBoard(lambda: 5.0)
    with board.installed():
        async with waiting("a", "b", kind="tool", deadline=None), waiting("a", "c", kind="judge", deadline=None):
            assert [(w.who, w.whom) for w in board.entries] == [("a", "b"), ("a", "c")]
            assert "1 judge, 1 tool" in board.table() and "a waits for b (tool), 0.0 s" in board.table()
            assert board.table(limit=1).endswith("... and 1 more")
        with pytest.raises(KeyError):
            async with waiting("a", "b", kind="tool", deadline=None):
                raise KeyError
        assert board.entries == [] and board.changes == 6
    async with waiting("a", "b", kind="tool", deadline=None):
        assert board.entries == []


@pytest.mark.parametrize("has_board", [True, False])
@on_virtual_time
async def test_a_wait_ends_at_its_deadline(has_board: bool) -> None:
    loop = asyncio.get_running_loop()
    board = WaitBoard(loop.time)
    with board.installed() if has_board else contextlib.nullcontext():
        with pytest.raises(TimeoutError):
            async with waiting("a", "b", kind="tool", deadline=3.0):
                await asyncio.sleep(60.0)
    assert loop.time() == 3.0 and board.entries == []


def test_slow_work_is_left_alone() -> None:
    told: list[str] = []
    run_virtual(guarded(slow_but_alive, [expire_oldest], told))  # type: ignore[arg-type]
    assert told == []


def test_without_remedy_a_stall_ends_the_tree_and_says_who_waits_for_whom() -> None:
    told: list[str] = []
    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(guarded(stuck, [], told))  # type: ignore[arg-type]
    (error,) = caught.value.exceptions
    assert isinstance(error, StalledError)
    report = str(error)
    assert told == [report]
    assert "s1/task/0 waits for replica 2 (generate), 12.5 s" in report
    assert "in stuck" in report and "thread MainThread" in report


def test_the_stack_goes_down_to_the_innermost_await() -> None:
    told: list[str] = []

    async def outer() -> None:
        await stuck()

    with pytest.raises(ExceptionGroup):
        run_virtual(guarded(outer, [], told))  # type: ignore[arg-type]
    assert told[0].index("in outer") < told[0].index("in stuck")


def test_the_oldest_wait_ends_first_and_as_its_deadline_would() -> None:
    told: list[str] = []

    async def work() -> None:
        hung = asyncio.create_task(stuck())
        with pytest.raises(TimeoutError):
            await hung

    run_virtual(guarded(work, [expire_oldest], told))  # type: ignore[arg-type]
    assert told[1] == "watchdog: ended the wait of s1/task/0 for replica 2"


def test_remedies_are_tried_mildest_first_and_once_per_stall() -> None:
    told: list[str] = []
    tried: list[tuple[str, float]] = []

    def remedy(name: str, result: str | None) -> Callable[[Stall], object]:
        async def act(stall: Stall) -> str | None:
            tried.append((name, stall.seconds))
            return result

        return act

    remedies = [remedy("nothing to cancel", None), remedy("restart", "restarted replica 2")]
    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(guarded(stuck, list(remedies), told))  # type: ignore[arg-type]
    assert isinstance(caught.value.exceptions[0], StalledError)
    assert [name for name, _ in tried] == ["nothing to cancel", "restart"]
    assert told[1] == "watchdog: restarted replica 2" and len(told) == 3


def test_progress_makes_every_remedy_fresh_again() -> None:
    told: list[str] = []
    release: list[asyncio.Future[None]] = []

    async def mend(stall: Stall) -> str | None:
        release.pop().set_result(None)
        return "mended"

    async def work() -> None:
        for _ in range(3):
            release.append(asyncio.get_running_loop().create_future())
            async with waiting("a", "b", kind="learn", deadline=None):
                await release[-1]

    run_virtual(guarded(work, [mend], told))  # type: ignore[arg-type]
    assert told[1::2] == ["watchdog: mended"] * 3
