"""`rocstar sandbox serve` as a process: options, signals, tokens and the access log."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rocstar.sandbox import cli
from rocstar.sandbox.command_line import require_own_users
from rocstar.sandbox.http.guard import Owner, Owners, require_token_unless_loopback

from ...patience import PATIENCE_S
from .conftest import request_bytes

COMMAND = [sys.executable, "-c", "import sys; from rocstar.sandbox.cli import main; sys.exit(main())", "serve"]
SMALL = ["--port", "0", "--flavours", "stdlib"]


@asynccontextmanager
async def started(
    *options: str, stderr: int | None = None, **environment: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """Start the service in its own session. Yields the process and its port."""
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, *SMALL, *options),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            line = await process.stdout.readline()
        match = re.search(rb"serving on http://127\.0\.0\.1:(\d+)", line)
        assert match, line
        yield process, int(match[1])
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ended(process: asyncio.subprocess.Process) -> int:
    return await asyncio.wait_for(process.wait(), PATIENCE_S)


async def fetch(port: int, path: str, body: Any = None, *lines: str) -> tuple[int, bytes]:
    """Send one request on its own connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    method = "GET" if body is None else "POST"
    writer.write(request_bytes(path, body, "Connection: close", *lines, method=method))
    async with asyncio.timeout(PATIENCE_S):
        head, _, text = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), text


async def exchange(port: int, path: str, body: Any = None, *lines: str) -> tuple[int, Any]:
    status, text = await fetch(port, path, body, *lines)
    return status, json.loads(text)


async def until_in_flight(port: int, number: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while b"\nrocstar_sandbox_in_flight %.1f\n" % number not in (await fetch(port, "/metrics"))[1]:
            pass


async def test_at_sigterm_calls_end_an_arriving_body_is_refused_and_the_status_is_0() -> None:
    async with started(MAX_EXECUTION_TIME="1") as (process, port), asyncio.timeout(PATIENCE_S):
        assert await exchange(port, "/ping") == (200, "pong")
        status, answer = await exchange(port, "/run", {"type": "python", "solution": "while True: pass"})
        assert (status, answer["reason"]) == (200, "worker_timeout")
        slow = {"code": "import time; time.sleep(3); print(1)"}
        call = asyncio.create_task(exchange(port, "/v1/run", slow))
        await until_in_flight(port, 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes("/v1/run", None, "Content-Length: 1000", "Expect: 100-continue"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b'{"code": ')
        process.send_signal(signal.SIGTERM)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ") and b"\r\nRetry-After: 1" in head
        failure = json.loads(await reader.readuntil(b"}}"))["error"]
        assert (failure["kind"], failure["retryable"]) == ("closed", True)
        writer.close()
        status, answer = await call
        assert (status, answer["stdout"]) == (200, "1\n")
        assert await process.wait() == 0


async def test_calls_that_take_too_long_fail_with_an_answer() -> None:
    async with started("--drain-s", "0.2") as (process, port):
        slow = {"code": "import time; time.sleep(100)", "limits": {"wall_s": 200.0}}
        calls = [
            asyncio.create_task(exchange(port, "/v1/run", slow)),
            asyncio.create_task(exchange(port, "/v1/batch", {"requests": [slow, slow]})),
        ]
        await until_in_flight(port, 3)
        process.send_signal(signal.SIGTERM)
        (status, answer), (batch_status, batch) = await asyncio.gather(*calls)
        assert (status, answer["error"]["kind"]) == (503, "closed")
        assert (batch_status, [r["error"]["kind"] for r in batch["results"]]) == (200, ["closed"] * 2)
        assert await ended(process) == 0


async def test_a_second_signal_hurries() -> None:
    async with started("--drain-s", "600") as (process, port):
        slow = {"code": "import time; time.sleep(100)", "limits": {"wall_s": 200.0}}
        call = asyncio.create_task(exchange(port, "/v1/run", slow))
        await until_in_flight(port, 1)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert (await call)[0] == 503
        assert await ended(process) == 0


async def test_the_token_is_needed_and_reaches_neither_a_program_nor_the_access_log() -> None:
    token = "0123456789abcdef0123"
    pipe = asyncio.subprocess.PIPE
    async with started("--access-log", stderr=pipe, ROCSTAR_SANDBOX_TOKEN=token) as (process, port):
        body = {"code": "import os; print(sorted(os.environ))"}
        assert (await exchange(port, "/v1/run", body))[0] == 401
        status, answer = await exchange(port, "/v1/run", body, f"Authorization: Bearer {token}")
        assert (status, "ROCSTAR" in answer["stdout"], token in answer["stdout"]) == (200, False, False)
        process.send_signal(signal.SIGTERM)
        _, log = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    line = rb'\d{4}-\d\d-\d\dT[\d:]+\+\d{4} 127\.0\.0\.1 - "POST /v1/run HTTP/1\.1" 200 \d+ \d+\.\d{3} "-" "-"\n'
    assert re.search(line, log) and token.encode() not in log


def test_any_address_but_loopback_needs_a_token() -> None:
    owners = Owners((Owner(name="", token="0123456789abcdef"),))
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        require_token_unless_loopback([host], Owners())
    for host in ("0.0.0.0", "::", "", "10.0.0.1", "fe80::1", "8.8.8.8"):
        with pytest.raises(ValueError, match="token is needed"):
            require_token_unless_loopback([host], Owners())
        require_token_unless_loopback([host], owners)


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        (["--host", "no-such-host.invalid"], {}, "--host no-such-host.invalid"),
        (["--host", "0.0.0.0"], {"ROCSTAR_SANDBOX_TOKEN": "short"}, "at least 16"),
        ([], {"MAX_EXECUTION_TIME": "soon"}, "MAX_EXECUTION_TIME"),
        ([], {"MAX_MEMORY": "99999999"}, "MAX_MEMORY"),
    ],
)
def test_what_keeps_it_from_starting_is_one_line_and_exit_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    environment: dict[str, str],
    message: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["serve", *SMALL, *options]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_a_port_that_is_taken_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["serve", "--flavours", "stdlib", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert error == (
        f"rocstar sandbox: cannot listen on 127.0.0.1:{port}: address already in use; pass another "
        "--port, or --port 0 for a free one\n"
    ), "it is told before the sandbox starts"


ANN, ANN_LATER, BOB = "ann-0123456789abcdef", "ann-later-0123456789", "bob-0123456789abcdef"


async def test_tokens_are_read_again_and_sessions_live_on(short_path: Path) -> None:
    file, path = short_path / "tokens", short_path / "socket"
    file.write_text(f"ann {ANN}\nbob {BOB}\n")
    file.chmod(0o600)
    log = b""

    async def until_logged(words: bytes) -> None:
        nonlocal log
        while words not in log:
            line = await process.stderr.readline()
            assert line, log
            log += line

    async def send(target: str, token: str, body: Any) -> tuple[int, Any]:
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as http:
            headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": "198.51.100.7"}
            async with http.post(f"http://rocstar{target}", json=body, headers=headers) as answer:
                return answer.status, await answer.json()

    options = ("--access-log", "--token-file", str(file), "--unix", str(path), "--host", "127.0.0.1")
    async with started(*options, stderr=asyncio.subprocess.PIPE) as (process, _), asyncio.timeout(PATIENCE_S):
        assert process.stdout is not None and process.stderr is not None
        assert await process.stdout.readline() == b"rocstar sandbox: serving on unix:%s\n" % os.fsencode(path)
        cells = f"/v1/sessions/{(await send('/v1/sessions', ANN, {}))[1]['id']}/run"
        await send(cells, ANN, {"code": "x = 6"})
        for text, line in (
            (f"ann {ANN_LATER}\ncarol {BOB}\n", b"; new carol; gone bob\n"),
            ("ann short\n", b"the tokens stay as they were"),
        ):
            file.write_text(text)
            os.killpg(process.pid, signal.SIGHUP)  # as a closed terminal sends it
            os.killpg(process.pid, signal.SIGUSR1)
            await until_logged(line)
            assert (await send("/v1/run", ANN, {"code": ""}))[0] == 401
            status, answer = await send(cells, ANN_LATER, {"code": "x * 7"})
            assert (status, answer["value"]) == (200, "42")
            assert (await send(cells, BOB, {"code": "x * 7"}))[0] == 410
        process.terminate()
        log += await process.stderr.read()
        assert await process.wait() == 0
    assert re.search(rb' 198\.51\.100\.7 ann "POST /v1/sessions HTTP/1\.1" 201 ', log)
    assert not any(token.encode() in log for token in (ANN, ANN_LATER, BOB))


async def test_a_service_whose_terminal_is_gone_ends_as_any_other() -> None:
    own, terminal = os.openpty()
    async with started(stderr=terminal) as (process, port):
        os.close(terminal)
        os.close(own)
        os.killpg(process.pid, signal.SIGHUP)
        assert (await exchange(port, "/v1/run", {"code": "print(1)"}))[0] == 200
        process.send_signal(signal.SIGTERM)
        assert await ended(process) == 0


@pytest.mark.parametrize(
    ("uid", "isolation", "allowed", "refused"),
    [
        (0, "nnp+landlock+seccomp", False, True),
        (0, "nnp+landlock+seccomp", True, False),
        (0, "nnp+landlock+seccomp+uid", False, False),
        (1000, "nnp+landlock+seccomp", False, False),
    ],
)
def test_root_does_not_serve_programs_as_root(
    monkeypatch: pytest.MonkeyPatch, uid: int, isolation: str, allowed: bool, refused: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    if not refused:
        return require_own_users(isolation, allowed, "serve")
    with pytest.raises(ValueError, match="programs would run as root"):
        require_own_users(isolation, allowed, "serve")


def test_help_imports_no_server() -> None:
    code = "import sys; from rocstar.sandbox import cli; cli.build_parser(); print('aiohttp' in sys.modules)"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"
