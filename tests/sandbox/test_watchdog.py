"""The watchdog bites a supervisor that is silent, or that only answers, and no other."""

from collections.abc import Iterator

import pytest

from rocstar.sandbox.watchdog import SILENT_S, STUCK_S, TICK_S, Watchdog


class Bench:
    """Ticks come when the test says so."""

    def __init__(self) -> None:
        self.longest_s: float | None = 3600.0
        self.asked = self.bitten = 0
        self.dog = Watchdog(lambda: self.longest_s, self._ask, self._bite)

    def _ask(self) -> None:
        self.asked += 1

    def _bite(self) -> None:
        self.bitten += 1

    def tick(self, seconds: float) -> None:
        for _ in range(int(seconds / TICK_S)):
            self.dog.stop()
            self.dog._tick()


@pytest.fixture
async def bench() -> Iterator[Bench]:  # type: ignore[misc]
    bench = Bench()
    bench.dog.watch()
    yield bench
    bench.dog.stop()


async def test_silence_is_a_hang_whatever_the_calls_may_take(bench: Bench) -> None:
    bench.tick(SILENT_S)
    assert (bench.asked, bench.bitten) == (SILENT_S // TICK_S, 0)
    bench.tick(TICK_S)
    assert bench.bitten == 1
    bench.tick(SILENT_S)  # the next one has as much time
    assert bench.bitten == 1


async def test_a_supervisor_that_answers_is_left_alone_while_its_calls_may_run(bench: Bench) -> None:
    for _ in range(int((3600.0 + STUCK_S) / TICK_S)):
        bench.tick(TICK_S)
        bench.dog.heard(pong=True)
    assert bench.bitten == 0
    bench.tick(TICK_S)
    assert bench.bitten == 1


async def test_results_are_signs_of_life(bench: Bench) -> None:
    bench.longest_s = 0.0
    for _ in range(20):
        bench.tick(STUCK_S)
        bench.dog.heard(pong=False)
    assert bench.bitten == 0


async def test_without_calls_there_is_nothing_to_watch(bench: Bench) -> None:
    bench.tick(STUCK_S)
    bench.longest_s = None
    bench.tick(TICK_S)
    assert bench.bitten == 0 and bench.dog._timer is None
    bench.longest_s = 1.0
    bench.dog.watch()
    bench.tick(STUCK_S)
    assert bench.bitten == 0
