"""`rocstar sandbox worker` as a process: its options, its end, and what its programs can learn of it."""

import argparse
import asyncio
import signal
from pathlib import Path

import pytest

from rocstar.sandbox.cli import build_parser, main
from rocstar.sandbox.fabric.cli import redis_url
from rocstar.sandbox.fabric.redis_connection import PREFIX
from rocstar.sandbox.types import ExecRequest, Limits, Status

from ...patience import PATIENCE_S
from ..errors import sandbox_error
from .harness import RedisServer, client, redis_server, until, worker_process

SECRET = "correct-horse-battery"

SPY = """
import glob, os
print(dict(os.environ))
names = ["environ", "cmdline", "maps", "mounts", "net/unix", "net/tcp"]
paths = [f"/proc/{who}/{name}" for name in names for who in ["self", *map(str, range(os.getpid() + 1))]]
for path in paths + glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/tmp/rocstar-redis-*/*"):
    try:
        with open(path, "rb") as file:
            print(path, file.read(100_000))
    except OSError:
        pass
for number in range(64):
    try:
        print(number, os.readlink(f"/proc/self/fd/{number}"))
    except OSError:
        pass
import gc
print([repr(thing)[:2000] for thing in gc.get_objects() if isinstance(thing, (list, dict))][:2000])
print("THE END")
"""


def parse(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(["worker", *arguments])


async def test_a_program_learns_nothing_of_redis() -> None:
    with redis_server("--requirepass", SECRET) as redis:
        url = redis.url.replace("unix://", f"unix://:{SECRET}@")
        with worker_process(url):
            async with client(url) as fabric:
                result = await fabric.run(ExecRequest(code=SPY, limits=Limits(wall_s=60.0)))
    assert result.stdout.endswith("THE END\n"), result
    assert result.status is Status.OK
    assert "'PATH'" in result.stdout, "the program saw its environment, so there was something to see"
    for text in (SECRET, "redis.sock", "REDIS_URL", PREFIX):
        assert text not in result.stdout
        assert text not in result.stderr


async def test_a_wrong_password_is_refused_at_once_and_never_shown() -> None:
    with redis_server("--requirepass", SECRET) as redis:
        for url in (redis.url, redis.url.replace("unix://", "unix://:wrong-horse@")):
            with sandbox_error("fabric", "refuses this node", retryable=False) as caught:
                async with asyncio.timeout(PATIENCE_S), client(url, patience_s=600.0):
                    pass
            assert "horse" not in str(caught.value)


async def test_a_signal_ends_the_worker_when_its_calls_are_answered(redis: RedisServer) -> None:
    with worker_process(redis.url, "--max-live", "2", "--name", "w") as process:
        async with client(redis.url) as fabric:
            (info,) = await fabric.workers()
            assert (info.name, info.capacity, info.flavours) == ("w", 2, ("stdlib",))
            code = "import time\ntime.sleep(0.5)\nprint('slept')"
            call = asyncio.create_task(fabric.run(ExecRequest(code=code)))
            await until(lambda: "entries-read\n1" in redis.cli("xinfo", "groups", f"{PREFIX}:calls:stdlib"))
            process.send_signal(signal.SIGTERM)
            assert (await call).stdout == "slept\n"
            assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
            assert await fabric.workers() == []


def test_the_url_comes_from_option_file_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROCSTAR_REDIS_URL", "REDIS_URL", "REDIS_URI"):
        monkeypatch.delenv(name, raising=False)
    assert redis_url(parse()) is None
    monkeypatch.setenv("REDIS_URI", "redis://c")
    assert redis_url(parse()) == "redis://c"
    monkeypatch.setenv("REDIS_URL", "redis://b")
    assert redis_url(parse()) == "redis://b"
    monkeypatch.setenv("ROCSTAR_REDIS_URL", "redis://a")
    assert redis_url(parse()) == "redis://a"
    file = tmp_path / "url"
    file.write_text("redis://file\nmore\n")
    assert redis_url(parse("--redis-file", str(file))) == "redis://file"
    assert redis_url(parse("--redis", "redis://option", "--redis-file", str(file))) == "redis://option"
    file.write_text("\n")
    with pytest.raises(ValueError, match="is empty"):
        redis_url(parse("--redis-file", str(file)))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--flavours", "rust"], "unknown flavour 'rust'"),
        (["--flavours", ","], "--flavours is empty"),
        (["--redis", "http://x"], "must begin with redis://"),
        (["--redis", "redis+cluster://x"], "cluster is not supported"),
    ],
)
def test_bad_options_say_what_to_mend(arguments: list[str], reason: str) -> None:
    options = parse("--redis", "redis://localhost:1", *arguments)
    with pytest.raises(ValueError, match=reason):
        options.run(options)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--max-live=0"], "--max-live: '0' is not a count"),
        (["--memory-bytes=0"], "--memory-bytes: '0' is not a count"),
        (["--patience-s=nan"], "--patience-s: 'nan' is not a time; give seconds"),
        (["--drain-s=inf"], "--drain-s: 'inf' is not a time; give seconds"),
    ],
)
def test_bad_numbers_name_their_option(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(*arguments)
    assert reason in capsys.readouterr().err


def test_without_a_url_it_says_where_to_put_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROCSTAR_REDIS_URL", "REDIS_URL", "REDIS_URI"):
        monkeypatch.delenv(name, raising=False)
    options = parse()
    with pytest.raises(ValueError, match="ROCSTAR_REDIS_URL"):
        options.run(options)


@pytest.mark.parametrize("verb", ["serve", "worker"])
def test_a_password_in_the_command_line_is_warned_of(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--redis", f"http://:{SECRET}@localhost"]) == 2
    said = capsys.readouterr().err
    assert "visible in the process list" in said and "must begin with redis://" in said and SECRET not in said
