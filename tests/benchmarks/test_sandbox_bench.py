"""The arithmetic, the client and the checks of the sandbox's benchmarks: none of them may measure wrongly."""

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.sandbox import _native
from rocstar.sandbox.pool import wire

from .. import needs

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import bench_parse  # noqa: E402
from sandbox_bench import flood, forks, http_client, load, programs, pure_parse, python_c, report, stats  # noqa: E402


def test_slope_and_median_and_arrivals() -> None:
    assert stats.slope([0, 1, 2, 3], [5, 7, 9, 11]) == pytest.approx(2)
    assert stats.slope([1, 2, 3], [4, 4, 4]) == 0
    assert stats.median([3, 1, 2]) == 2 and stats.median([4, 1, 2, 3]) == 2.5
    times = stats.poisson_arrivals(100.0, 20_000, seed=3)
    assert times == sorted(times) and times[-1] == pytest.approx(200, rel=0.05)
    gaps = [b - a for a, b in pairwise(times)]
    assert sum(gap > 0.01 for gap in gaps) / len(gaps) == pytest.approx(0.3679, abs=0.02)


@pytest.mark.parametrize("xs", [[1.0], [2.0, 2.0]])
def test_no_slope_without_two_points(xs: list[float]) -> None:
    with pytest.raises(ValueError):
        stats.slope(xs, xs)


def test_cores_for_a_step() -> None:
    assert stats.cores_needed(0.002) == pytest.approx(300)


@pytest.mark.parametrize("kind", programs.MAKERS)
def test_a_program_prints_what_it_is_expected_to(kind: str) -> None:
    stream = programs.nonced(kind)
    two = [next(stream), next(stream)]
    assert two[0].code != two[1].code and two[0].expected != two[1].expected
    assert not two[0].right(two[1].expected) and not two[0].right(None)
    assert python_c.run_all(two[:1], at_once=1).wrong == []


async def test_bare_forks_answer_in_order_and_know_a_failure() -> None:
    ended_badly = [
        "print(1); raise SystemExit(1)",
        "print(1",
        "import os; os._exit(0)",
        "print('a' * 100_000)",
    ]
    some = [programs.Program(code=code, expected="", flavour="stdlib") for code in ended_badly]
    good = programs.print_program(7)
    async with forks.forks(forks.Warm(name="bare"), 2) as interpreters:
        assert await interpreters.run([*some, good]) == [None, None, "", "a" * 100_000 + "\n", "7\n"]
        done = await forks.of_forks(interpreters, programs.nonced("print"), 3 * forks.BATCH)
    assert (done.calls, done.wrong) == (3 * forks.BATCH, [])
    assert done.cpu_s > 0


async def test_a_fork_has_what_its_interpreter_imported() -> None:
    program = programs.Program(
        code="import sys; print('fractions' in sys.modules, seen)", expected="", flavour="stdlib"
    )
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


def test_python_c_counts_cpu_and_wrong_answers() -> None:
    wrong = programs.Program(code="print(2)", expected="1", flavour="stdlib")
    failed = programs.Program(code="print(1); raise SystemExit(1)", expected="1", flavour="stdlib")
    done = python_c.run_all([wrong, failed], at_once=2)
    assert done.calls == 2 and sorted(str(out) for _, out in done.wrong) == ["2\n", "None"]
    assert done.cpu_s > 0


def test_only_programs_recorded_ok_are_loaded(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "code": "import sympy as s", "expected_output": "1", "status": "ok"},
        {"id": "b", "code": "x", "expected_output": "", "status": "error"},
        {"id": "c", "code": "def f(:", "expected_output": "2", "status": "ok"},
    ]
    path = tmp_path / "programs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = programs.load_real(path)
    assert [(program.name, program.flavour) for program in found] == [("a", "numeric"), ("c", "stdlib")]
    assert len(programs.load_real(path, limit=1)) == 1
    path.write_text(json.dumps(rows[1]))
    with pytest.raises(ValueError, match="no program"):
        programs.load_real(path)


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


@given(st.lists(st.binary(min_size=1, max_size=9) | st.just(b"0\r\n\r\n"), max_size=4), st.integers(1, 30))
def test_chunks_come_together_whatever_the_pieces(chunks: list[bytes], piece: int) -> None:
    wire = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    connection = http_client._Connection()
    loop = asyncio.new_event_loop()
    connection._answer = loop.create_future()
    connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for at in range(0, len(wire), piece):
        assert not connection._answer.done()
        connection.data_received(wire[at : at + piece])
    assert connection._answer.result().body == b"".join(chunks)
    loop.close()


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


def test_a_missed_bar_is_seen_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    met = report.bar("fast", 2.0, 2.0, at_most=True)
    missed = report.bar("many", 699.0, 700.0, at_most=False)
    out = tmp_path / "new" / "x.json"
    assert report.finish("x", {"figure": 1}, [met], None) == 0
    assert report.finish("x", {"figure": 1}, [met, missed], out) == 1
    assert "MISSED  many" in capsys.readouterr().out
    written = json.loads(out.read_text())
    assert written["figure"] == 1 and written["machine"]["cores"] >= 1 and len(written["bars"]) == 2


def test_a_command_shows_no_path_of_this_machine() -> None:
    given_ = ["benchmarks/x.py", "cpu", "--data", "../a/b.jsonl", "--code-judge=/c/d", "--scale=0.5"]
    assert report.command(given_) == "python benchmarks/x.py cpu --data b.jsonl --code-judge=d --scale=0.5"


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5), st.integers(0, 50), st.integers(1, 40))
def test_the_python_reference_keeps_what_it_should(raws: list[bytes], cap: int, piece: int) -> None:
    stream = b"".join(pure_parse.frame_result(i, raw, b"", cap) for i, raw in enumerate(raws))
    reader = wire.PythonReader()
    pieces = [stream[at : at + piece] for at in range(0, len(stream), piece)]
    results = [found for part in pieces for found in reader.feed(part)]
    assert [result[1] for result in results] == list(range(len(raws)))
    for raw, result in zip(raws, results, strict=True):
        stdout, was_cut = result[5], result[7]
        whole = raw.decode("utf-8", "replace")
        assert was_cut == (len(raw) > cap or len(whole.encode()) > cap)
        if not was_cut:
            assert stdout == whole
        elif cap:
            head, tail = stdout.split("\n... [", 1)[0], stdout.split("cut] ...\n", 1)[1]
            assert len(head.encode()) <= cap - cap // 2 and len(tail.encode()) <= cap // 2
        else:
            assert stdout == ""
    assert _native.ResultReader().feed(stream) == results


def test_the_python_reference_keeps_what_the_supervisor_does(tmp_path: Path) -> None:
    """Text and bytes that are none, whole ones and parts, at every cap that may cut them."""
    needs.commands("g++")
    program = bench_parse.build(tmp_path)
    rng = random.Random(20261124)
    pieces = [b"a", "é".encode(), "数".encode(), "😀".encode(), b"\xc3", b"\xe2\x82", b"\xff", b"\x80", b"\n"]
    raws = [b"".join(rng.choices(pieces, k=rng.randrange(40)))[: rng.randrange(1, 60)] for _ in range(400)]
    raws += [rng.randbytes(rng.randrange(60)) for _ in range(100)]
    for cap in (0, 1, 2, 3, 5, 8, 13, 21, 30, 40, 59, 60, 100, 180):
        assert bench_parse.cpp_frames(program, tmp_path, raws, 1, cap)[1] == bench_parse.python_frames(
            raws, cap
        )


@given(st.binary(max_size=40) | st.text(max_size=20).map(lambda text: text.encode("utf-8")))
def test_repairing_by_hand_is_what_the_codec_does(data: bytes) -> None:
    assert pure_parse.repair_by_hand(data) == data.decode("utf-8", "replace")


def test_a_cut_never_splits_a_code_point() -> None:
    raw = ("é数😀" * 30).encode()
    for cap in range(8, 120):
        text, cut = pure_parse.truncate(raw, cap)
        assert cut == (cap < len(raw)) and "\ufffd" not in text.decode()
    noise = random.Random(0).randbytes(500)
    assert pure_parse.cut_head(noise[:1]) in (noise[:1], b"")


@pytest.mark.parametrize("name", ["bench_sandbox", "soak_sandbox", "chaos_sandbox", "bench_parse"])
def test_every_benchmark_has_a_help(name: str) -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / f"{name}.py", "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "usage" in done.stdout, done.stderr
