"""The arithmetic, the client and the checks of the sandbox's benchmarks: none of them may measure wrongly."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from sandbox_bench import flood, forks, http_client, load, programs  # noqa: E402


@pytest.mark.parametrize("kind", programs.MAKERS)
def test_a_program_prints_what_it_is_expected_to(kind: str) -> None:
    stream = programs.nonced(kind)
    two = [next(stream), next(stream)]
    assert two[0].code != two[1].code and two[0].expected != two[1].expected
    assert not two[0].right(two[1].expected) and not two[0].right(None)
    assert two[0].right(two[0].expected)


async def test_bare_forks_answer_in_order_and_know_a_failure() -> None:
    ended_badly = ["print(1); raise SystemExit(1)", "print(1", "import os; os._exit(0)", "print('a' * 100_000)"]
    some = [programs.Program(code, "") for code in ended_badly]
    good = programs.print_program(7)
    async with forks.forks(forks.Warm(name="bare"), 2) as interpreters:
        assert await interpreters.run([*some, good]) == [None, None, "", "a" * 100_000 + "\n", "7\n"]
        done = await forks.of_forks(interpreters, programs.nonced("print"), 3 * forks.BATCH)
    assert (done.calls, done.wrong) == (3 * forks.BATCH, [])
    assert done.cpu_s > 0


async def test_a_fork_has_what_its_interpreter_imported() -> None:
    program = programs.Program("import sys; print('fractions' in sys.modules, seen)", "")
    warm = forks.Warm(
        name="warm",
        modules=("fractions",),
        warm_up="import builtins; builtins.seen = 3; print('not an answer')",
        frozen=True,
    )
    async with forks.forks(warm, 1) as interpreters:
        assert await interpreters.run([program]) == ["True 3\n"]


async def test_an_interpreter_that_does_not_get_warm_is_told() -> None:
    with pytest.raises(RuntimeError, match="warm 'nothing of this name'"):
        async with forks.forks(forks.Warm(name="nothing of this name", modules=("nothing_of_this_name",)), 1):
            pass


def test_the_ratio_is_of_rounds_that_ran_one_after_the_other() -> None:
    def loads(*cpu_s: float) -> list[load.Load]:
        return [load.Load(calls=10, cpu_s=some) for some in cpu_s]

    assert forks.ratio(loads(1, 2, 30), loads(2, 4, 10)) == 0.5


async def test_driving_a_load_sends_every_program_once_and_sees_wrong_answers() -> None:
    sent: list[str] = []
    busy, most = 0, 0

    async def send(batch: Sequence[programs.Program]) -> list[str | None]:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(0)
        sent.extend(program.code for program in batch)
        busy -= 1
        return [None if program.code.endswith("7)") else program.expected for program in batch]

    batches = load.in_batches(programs.nonced("print", 100), 50, 8)
    done = await load.drive(send, batches, lanes=3, roots=[])
    assert sorted(sent) == sorted(f"print({nonce})" for nonce in range(100, 150))
    assert (done.calls, len(done.wrong), most) == (50, 5, 3)
    assert load.summary([done])["wrong"] == 5


@asynccontextmanager
async def server(answers: list[bytes], piece: int = 7) -> AsyncIterator[http_client.Client]:
    """Answers the requests of one connection after the other with the given bytes, a piece at a time."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while answers:
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            except asyncio.IncompleteReadError:
                break
            length = int(head.split("content-length: ")[1].split()[0]) if "content-length" in head else 0
            await reader.readexactly(length)
            answer = answers.pop(0)
            for at in range(0, len(answer), piece):
                writer.write(answer[at : at + piece])
                await writer.drain()
            if b"close" in answer:
                break
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener, http_client.Client("127.0.0.1", listener.sockets[0].getsockname()[1]) as client:
        yield client


async def test_the_client_reads_lengths_chunks_and_reuses_connections() -> None:
    answers = [
        b'HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{"a":1}',
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n0\r\n\r\n\r\n4;x=y\r\nefgh\r\n0\r\n\r\n",
        b"HTTP/1.1 429 Too Many\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ]
    async with server(answers) as client:
        assert (await client.post("/x", {"b": 2})).json() == {"a": 1}
        assert (await client.get("/x")).body == b"0\r\n\r\nefgh"
        assert (await client.get("/x")).status == 429
        assert (await client.get("/x")).body == b"ok"


@given(st.lists(st.binary(min_size=1, max_size=9) | st.just(b"0\r\n\r\n"), max_size=4))
def test_chunks_come_together(chunks: list[bytes]) -> None:
    wire = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"

    async def read() -> http_client.Answer:
        reader = asyncio.StreamReader()
        reader.feed_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + wire)
        reader.feed_eof()
        return await http_client.read_answer(reader)

    assert asyncio.run(read()).body == b"".join(chunks)


async def test_a_broken_answer_is_an_error_and_never_half_an_answer() -> None:
    closed = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 99\r\n\r\nshort"
    async with server([closed]) as client:
        with pytest.raises(http_client.HttpError):
            await client.get("/x")
    async with server([b"no HTTP at all\r\n\r\n"]) as client:
        with pytest.raises(http_client.HttpError):
            await client.get("/x")


def test_the_gauge_is_summed_over_its_labels_and_nothing_else() -> None:
    text = '# TYPE x gauge\nrocstar_sandbox_in_flight_limit 9\nrocstar_sandbox_in_flight{f="a"} 3\n'
    assert flood.gauge_value(text + 'rocstar_sandbox_in_flight{f="b"} 4.5\n') == 7.5
    with pytest.raises(ValueError, match="no rocstar_sandbox_in_flight"):
        flood.gauge_value("rocstar_sandbox_in_flight_limit 9\n")


def test_the_benchmark_has_a_help() -> None:
    script = BENCHMARKS / "bench_sandbox.py"
    done = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "usage" in done.stdout, done.stderr
