"""The gauge tells how late the loop is, by time and not by number."""

import asyncio
from typing import cast

from rocstar.train.record.metrics import check_names
from rocstar.train.record.time_budget import BEAT_S, LoopLag
from tests.fakes.scripted_policy import VirtualClockLoop, run_virtual


def test_a_loop_that_was_blocked_says_for_how_long() -> None:
    async def main() -> None:
        loop = cast(VirtualClockLoop, asyncio.get_running_loop())
        with LoopLag() as lag:
            assert lag.take() == {}
            await asyncio.sleep(10.0)
            found = lag.take()
            check_names(found)
            assert max(found.values()) < 1e-6
            loop.call_later(1.0, loop.stand_still, 0.05)
            await asyncio.sleep(20.0)
            found = lag.take()
            assert found["time/loop_lag_p99"] < 1e-6, "a twentieth of a second in twenty"
            assert 0.05 - BEAT_S <= found["time/loop_lag_max"] <= 0.05
            loop.call_later(1.0, loop.stand_still, 2.0)
            await asyncio.sleep(20.0)
            found = lag.take()
            assert 1.9 < found["time/loop_lag_p99"] == found["time/loop_lag_max"] <= 2.0
            await asyncio.sleep(1.0)
            assert lag.take()["time/loop_lag_max"] < 1e-6, "what was told is not told again"

    run_virtual(main())
