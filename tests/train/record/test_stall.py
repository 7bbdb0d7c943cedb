"""A run that hangs: its oldest trajectory is given up, then the process."""

import asyncio
from pathlib import Path

import pytest

from rocstar.engine.waits import waiting
from rocstar.train.record.stall import REPORT, guarded
from tests.fakes.scripted_policy import run_virtual


def test_a_hung_trajectory_is_given_up_and_the_run_goes_on(tmp_path: Path) -> None:
    notes: list[str] = []

    async def main() -> None:
        async with guarded(tmp_path, stall_s=10.0, note=notes.append, leave=pytest.fail):
            with pytest.raises(TimeoutError):
                async with waiting("s1/t/0", "the policy", kind="generate", deadline=1e6):
                    await asyncio.get_running_loop().create_future()

    run_virtual(main())
    assert "s1/t/0 waits for the policy (generate), 10.0 s" in notes[0]
    assert notes[1].startswith("watchdog: ended the wait of s1/t/0") or "ended the wait" in notes[1]
    assert "in main" in (tmp_path / REPORT).read_text()


def test_a_hung_learner_ends_the_process(tmp_path: Path) -> None:
    left: list[int] = []
    notes: list[str] = []

    async def main() -> None:
        done = asyncio.get_running_loop().create_future()

        def leave(code: int) -> None:
            left.append(code)
            done.set_result(None)

        async with guarded(tmp_path, stall_s=10.0, note=notes.append, leave=leave):
            async with waiting("step 3", "the learner", kind="learn", deadline=None):
                await done

    run_virtual(main())
    assert left == [1] and "step 3 waits for the learner (learn), 10.0 s" in notes[0] and "--resume" in notes[-1]


def test_a_run_that_ends_takes_its_watchdog_along(tmp_path: Path) -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        async with guarded(tmp_path, stall_s=10.0, note=pytest.fail, leave=pytest.fail):
            await asyncio.sleep(1000.0)
        assert asyncio.all_tasks() == before

    run_virtual(main())
