"""A supervisor that is silent, or that only answers PING, is killed, and no other."""

from collections.abc import Iterable, Iterator

import pytest

from rocstar.sandbox.pool import wire
from rocstar.sandbox.pool.process import JOINED_BYTES, SILENT_S, STUCK_S, TICK_S, Supervisor, SupervisorOptions
from rocstar.sandbox.types import ExecRequest

OPTIONS = SupervisorOptions(flavours=(), max_live=1, max_sessions=0, memory_bytes=0, lease_s=0.0)


class Bench(Supervisor):
    """One without a process. Ticks come when the test says so."""

    def __init__(self) -> None:
        self.longest_s: float | None = 3600.0
        self.asked = self.bitten = 0
        self.frames: list[int] = []
        super().__init__(
            OPTIONS,
            on_frame=lambda frame: self.frames.append(frame[0]),
            on_read=lambda: None,
            on_end=lambda: None,
            longest_s=lambda: self.longest_s,
        )

    def _send(self, data: bytes) -> None:
        self.asked += data == wire.encode_ids(wire.PING, 0)

    def kill(self) -> None:
        self.bitten += 1

    def tick(self, seconds: float) -> None:
        for _ in range(int(seconds / TICK_S)):
            self._stop_watching()
            self._tick()


@pytest.fixture
async def bench() -> Iterator[Bench]:  # type: ignore[misc]
    bench = Bench()
    bench.write(b"")
    yield bench
    bench._stop_watching()


async def test_silence_is_a_hang_whatever_the_calls_may_take(bench: Bench) -> None:
    bench.tick(SILENT_S)
    assert (bench.asked, bench.bitten) == (SILENT_S // TICK_S, 0)
    bench.tick(TICK_S)
    assert bench.bitten == 1
    bench.tick(SILENT_S)  # the next one has as much time
    assert bench.bitten == 1


async def test_a_zygote_that_hangs_when_it_is_started_again_is_the_supervisors_to_end(bench: Bench) -> None:
    """The supervisor would be killed first, and every session with it, for what one flavour imports."""
    bench.longest_s = 4.0
    for _ in range(int((OPTIONS.zygote_start_s + TICK_S) / TICK_S)):
        bench.tick(TICK_S)
        bench._note_frame(wire.PONG)
    assert bench.bitten == 0


async def test_a_supervisor_that_answers_is_left_alone_while_its_calls_may_run(bench: Bench) -> None:
    for _ in range(int((3600.0 + STUCK_S) / TICK_S)):
        bench.tick(TICK_S)
        bench._note_frame(wire.PONG)
    assert bench.bitten == 0
    bench.tick(TICK_S)
    assert bench.bitten == 1


async def test_results_are_signs_of_life(bench: Bench) -> None:
    bench.longest_s = 0.0
    for _ in range(20):
        bench.tick(SILENT_S)
        bench._note_frame(wire.RESULT)
    assert bench.bitten == 0


async def test_without_calls_there_is_nothing_to_watch(bench: Bench) -> None:
    bench.tick(SILENT_S)
    bench.longest_s = None
    bench.tick(TICK_S)
    assert bench.bitten == 0 and bench._timer is None
    bench.longest_s = 1.0
    bench.write(b"")
    bench.tick(SILENT_S)
    assert bench.bitten == 0


async def test_an_answer_to_ping_is_for_the_watch_alone(bench: Bench) -> None:
    bench.tick(SILENT_S)
    pong = wire.encode_ids(wire.PONG, 0)
    bench.get_buffer(-1)[: len(pong)] = pong
    bench.buffer_updated(len(pong))
    bench.tick(TICK_S)
    assert (bench.frames, bench.bitten) == ([], 0)


async def test_the_watch_ends_with_the_supervisor(bench: Bench) -> None:
    bench._hello.set_result(None)
    bench.connection_lost(None)
    assert bench._timer is None and not bench.alive


async def test_a_transport_gets_no_empty_piece() -> None:
    """CPython 3.12 keeps an empty last piece and tries to send it for ever."""
    sent: list[bytes] = []

    class Transport:
        def writelines(self, pieces: Iterable[bytes]) -> None:
            sent.extend(pieces)

    supervisor = Supervisor(OPTIONS, on_frame=print, on_read=print, on_end=print, longest_s=lambda: None)
    supervisor._transport = Transport()  # type: ignore[assignment]
    code = "#" * JOINED_BYTES
    supervisor._send(*wire.encode_run(1, ExecRequest(code=code), 0))
    assert b"" not in sent and sent[1] == code.encode()
