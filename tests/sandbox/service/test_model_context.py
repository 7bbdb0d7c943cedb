"""The Model Context Protocol server with the SDK's client, over pipes and over HTTP."""

import argparse
import asyncio
import base64
import dataclasses
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ... import needs
from ...malformed_http import LAST, answer_to, of_length, said

if find_spec("mcp") is None:
    pytest.skip(needs.package("mcp").reason, allow_module_level=True)

import httpx2
import mcp
from mcp.client.streamable_http import streamable_http_client

from rocstar.sandbox.http import malformed
from rocstar.sandbox.http.guard import Owner, Owners
from rocstar.sandbox.http.listening import Address, bind, listen
from rocstar.sandbox.service.model_context import guard, server
from rocstar.sandbox.types import Display, Status
from tests.fakes.sandbox import FakeSandbox, ok

from .conftest import request_bytes

SECONDS = 120.0
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
RUNS = ("run_python", "run_cell")
FIGURE = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 2])\nplt.show()"
PNG = b"\x89PNG\r\n\x1a\n"
FIRST, SECOND = "first-0123456789abcdef", "second-0123456789abcdef"
OWNERS = Owners((Owner(name="first", token=FIRST), Owner(name="second", token=SECOND)))


def text_of(answer: Any) -> str:
    return "".join(part.text for part in answer.content if part.type == "text")


async def test_a_hundred_cells_in_ten_sessions_and_a_figure() -> None:
    """Over standard input and output of `rocstar sandbox mcp`."""
    program = Path(sys.executable).with_name("rocstar")
    options = ["--flavours", "stdlib,plot", "--allow-shared-user"]
    process = mcp.StdioServerParameters(command=str(program), args=["sandbox", "mcp", *options])
    async with asyncio.timeout(SECONDS), mcp.Client(process) as client:
        offered = {tool.name for tool in (await client.list_tools()).tools}
        assert offered == {"run_python", "run_cell", "write_file", "read_file", "close_session"}
        for tool in (await client.list_tools()).tools:
            assert tool.input_schema["additionalProperties"] is False and tool.annotations.title

        async def ten_cells(number: int) -> list[str]:
            answer = await client.call_tool("run_cell", {"code": f"x = {number}\nx"})
            session = answer.structured_content["session"]
            seen = [answer.structured_content["value"]]
            for _ in range(9):
                more = {"code": "x += 10\nx", "session": session}
                seen.append((await client.call_tool("run_cell", more)).structured_content["value"])
            return seen

        seen = await asyncio.gather(*(ten_cells(number) for number in range(10)))
        assert seen == [[str(number + 10 * cell) for cell in range(10)] for number in range(10)]

        drawn = await client.call_tool("run_python", {"code": FIGURE, "wall_s": 30})
        (picture,) = [part for part in drawn.content if part.type == "image"]
        assert picture.mime_type == "image/png" and base64.b64decode(picture.data).startswith(PNG)

        failed = await client.call_tool("run_python", {"code": "1 / 0"})
        assert failed.is_error and "ZeroDivisionError" in text_of(failed)
        ended = await client.call_tool("run_python", {"code": "import os\nprint(1)\nos._exit(3)"})
        assert ended.is_error and text_of(ended) == "1\n[exit code 3]"
        for unknown in ("timeout", "wall"):
            misspelt = await client.call_tool("run_python", {"code": "1", unknown: 60})
            assert misspelt.is_error and unknown in text_of(misspelt)
        late = await client.call_tool("run_python", {"code": "while True: pass", "wall_s": 0.2})
        assert late.is_error and late.structured_content["status"] == "timeout"

        table = {"code": "print(open('in.csv').read(2))\nopen('out.bin', 'wb').write(b'\\xff')", "fetch": ["out.bin"]}
        answer = await client.call_tool("run_python", {**table, "files": {"in.csv": "a,b"}})
        (file,) = [part.resource for part in answer.content if part.type == "resource"]
        assert text_of(answer).startswith("a,") and base64.b64decode(file.blob) == b"\xff"

        content = base64.b64encode(bytes(range(256))).decode()
        wrote = await client.call_tool("write_file", {"session": "", "name": "b", "content_base64": content})
        place = {"session": wrote.structured_content["session"], "name": "b"}
        (read,) = [
            part.resource for part in (await client.call_tool("read_file", place)).content if part.type == "resource"
        ]
        assert read.blob == content
        for wrong in ({**place, "name": "nowhere"}, {**place, "name": "../x"}, {**place, "session": "?"}):
            assert (await client.call_tool("read_file", wrong)).is_error
        assert text_of(await client.call_tool("close_session", {"session": place["session"]})) == "closed"
        gone = await client.call_tool("run_cell", {"code": "1", "session": place["session"]})
        assert gone.is_error and "without `session` to open another" in text_of(gone)


def served(folder: Path, text: str) -> mcp.StdioServerParameters:
    """`rocstar sandbox mcp` with a flavour that imports a module with this text."""
    site = folder / "own" / "lib" / VERSION / "site-packages"
    site.mkdir(parents=True)
    (site / "unready.py").write_text(text)
    own = folder / "own.toml"
    own.write_text('[flavour.own]\nimports = ["unready"]\nenvironment = "own"\n')
    options = ["--flavours", "stdlib", "--flavour-file", str(own), "--allow-shared-user"]
    program = Path(sys.executable).with_name("rocstar")
    return mcp.StdioServerParameters(command=str(program), args=["sandbox", "mcp", *options])


async def test_a_call_waits_for_no_flavour_but_its_own(tmp_path: Path) -> None:
    process = served(tmp_path, "open(__file__ + '.pipe', 'rb', 0).read(1)\n")
    pipe = f"{tmp_path}/own/lib/{VERSION}/site-packages/unready.py.pipe"
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR)
    try:
        async with asyncio.timeout(SECONDS), mcp.Client(process) as client:
            assert len((await client.list_tools()).tools) == 5
            answers = [await client.call_tool(name, {"code": "6 * 7"}) for name in RUNS]
            assert [text_of(answer) for answer in answers] == ["42", "42"]
    finally:
        os.close(held)


async def test_a_pool_that_cannot_start_ends_the_server_with_its_reason(tmp_path: Path) -> None:
    process = served(tmp_path, "raise RuntimeError('boom')\n")
    ended = await asyncio.create_subprocess_exec(
        process.command, *process.args, "--http", "--port=0", stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    assert ended.stdin is not None and ended.stderr is not None
    told = (await asyncio.wait_for(ended.stderr.read(), SECONDS)).decode()  # its input is open still
    assert await ended.wait() == 2
    assert "flavour 'own' cannot start: importing unready raised RuntimeError: boom" in told.splitlines()[-1]
    ended.stdin.close()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
@pytest.mark.parametrize("over", [[], ["--http", "--port=0"]], ids=["stdio", "http"])
async def test_a_signal_ends_it_though_its_input_is_open(
    tmp_path: Path, over: list[str], number: int, status: int
) -> None:
    process = served(tmp_path, "")
    ended = await asyncio.create_subprocess_exec(
        process.command, *process.args, *over, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    assert ended.stdin is not None and ended.stdout is not None and ended.stderr is not None
    async with asyncio.timeout(SECONDS):
        lines = [(await ended.stderr.readline()).decode() for _ in range(3)]
        assert sum("is warm after" in line for line in lines) == 2
        if over:
            assert b"serving on" in await ended.stdout.readline()
        ended.send_signal(number)
        assert await ended.wait() == status
    ended.stdin.close()


@asynccontextmanager
async def listening(owners: Owners, sandbox: Any = None) -> AsyncIterator[str]:
    """The server over HTTP, before a sandbox that answers at once; its address."""
    sandbox = sandbox or FakeSandbox(lambda request: ok("ran\n"))
    sockets = bind(Address(hosts=("127.0.0.1",), port=0))
    listen(sockets)  # clients may come before it serves
    serving = asyncio.create_task(server.serve_http(sandbox, 4, owners, sockets))
    try:
        yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}/mcp"
    finally:
        serving.cancel()
        await asyncio.wait((serving,))


def port_of(address: str) -> int:
    return int(address.split(":")[2].partition("/")[0])


@asynccontextmanager
async def client_of(address: str, token: str = "", **headers: str) -> AsyncIterator[Any]:
    if token:
        headers["Authorization"] = f"Bearer {token}"
    async with (
        httpx2.AsyncClient(headers=headers, timeout=SECONDS) as http,
        mcp.Client(streamable_http_client(address, http_client=http)) as client,
    ):
        yield client


@pytest.mark.parametrize("name", ["chunks and a length", "a length and chunks", "two lengths"])
async def test_a_body_of_two_lengths_hides_no_request(name: str) -> None:
    """The SDK's server takes chunks beside a length; what a proxy takes for the body was the next request."""
    async with listening(Owners()) as address:
        statuses, _ = await said(port_of(address), of_length(b"/mcp", name) + LAST)
    assert statuses == [400]


async def test_over_http_a_session_is_its_owners() -> None:
    async with listening(OWNERS) as address:
        async with client_of(address, FIRST) as client:
            answer = await client.call_tool("run_cell", {"code": "1"})
            assert text_of(answer) == "ran"
            own = {"code": "2", "session": answer.structured_content["session"]}
            assert not (await client.call_tool("run_cell", own)).is_error
            async with client_of(address, SECOND) as other:
                assert "unknown" in text_of(await other.call_tool("run_cell", own))


WITHOUT_TOKEN = ({}, {"Authorization": f"Bearer {FIRST}x"}, {"Authorization": f"Basic {FIRST}"})
OF_A_PAGE = ({"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Sec-Fetch-Site": "cross-site"})


@pytest.mark.parametrize(("owners", "refused", "status"), [(OWNERS, WITHOUT_TOKEN, 401), (Owners(), OF_A_PAGE, 403)])
async def test_who_may_not_call_is_told_so(owners: Owners, refused: Any, status: int) -> None:
    async with listening(owners) as address:
        for headers in refused:
            async with httpx2.AsyncClient() as http:
                assert (await http.post(address, json={}, headers=headers)).status_code == status


def test_an_address_that_others_reach_needs_a_token() -> None:
    options = argparse.Namespace(
        **{"http": True, "host": ["0.0.0.0"], "port": 0, "unix": "", "unix_group": "", "token_file": None},
        **{"flavours": "stdlib", "flavour_file": None},
    )
    with pytest.raises(ValueError, match="token is needed"):
        server.run(options)


PARAMS = {**{"protocolVersion": "2025-03-26", "capabilities": {}}, "clientInfo": {"name": "x", "version": "1"}}
HELLO = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": PARAMS}
TAKES = {"Accept": "application/json, text/event-stream"}


async def hello(address: str, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}", **TAKES}
    async with httpx2.AsyncClient() as http:
        return int((await http.post(address, json=HELLO, headers=headers)).status_code)


async def test_who_says_nothing_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that send no byte."""
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 16)
    async with listening(OWNERS) as address:
        port = port_of(address)
        assert await hello(address, FIRST) == 200
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        assert await hello(address, FIRST) == 200
        for reader, _ in silent[:20]:
            assert await reader.read() == b""
        for _, writer in silent:
            writer.close()


async def test_one_owners_clients_leave_room_for_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also sessions of the SDK, which live for half an hour."""
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 16)
    async with listening(OWNERS) as address:
        for _ in range(40):
            await hello(address, FIRST)
        assert await hello(address, SECOND) == 200
        port = port_of(address)
        kept, statuses = [], []
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            whole = request_bytes("/mcp", {"method": "ping"}, f"Authorization: Bearer {FIRST}")
            writer.write(whole[:-1])
            kept.append((reader, writer))
        for reader, _ in reversed(kept):
            line = await reader.readline()
            statuses.append(line[9:12])
            if line:
                break
        assert statuses == [b"429"]
        assert await hello(address, SECOND) == 200
        for _, writer in kept:
            writer.close()


async def in_pieces(number: int) -> AsyncIterator[bytes]:
    for _ in range(number):
        yield b"x" * (1 << 20)


async def test_the_sdk_parses_no_large_body(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed, forward = [], guard.forward
    monkeypatch.setattr(guard, "forward", lambda *of: parsed.append(len(of[2])) or forward(*of))
    sandbox = FakeSandbox(lambda request: ok("ran\n"))
    code, stdin, text, content = "x = 1\n" * 20_000, "é" * 100_000, "\n" * 300_000, os.urandom(200_000)
    async with listening(OWNERS, sandbox) as address, client_of(address, FIRST) as client:
        files = {"a": text, "b": "short"}
        given = {"code": code, "stdin": stdin, "files": files}
        assert text_of(await client.call_tool("run_python", given)) == "ran"
        request = sandbox.requests[-1]
        assert (request.code, request.stdin) == (code, stdin)
        assert request.files == {"a": text.encode(), "b": b"short"}
        await client.call_tool("run_cell", {"code": code, "files": files})
        assert (sandbox.requests[-1].code, sandbox.requests[-1].files) == (code, request.files)
        encoded = base64.b64encode(content).decode()
        await client.call_tool("write_file", {"session": "", "name": "c", "content_base64": encoded})
        assert sandbox.requests[-1].files == {"c": content}
        wrong = {"session": "", "name": "c", "content_base64": encoded + "?"}
        assert "is not base64" in text_of(await client.call_tool("write_file", wrong))
        assert "code has 1048577 characters; at most 1048576" in text_of(
            await client.call_tool("run_python", {"code": "x" * 1048577})
        )
        async with httpx2.AsyncClient(headers={**TAKES, "Authorization": f"Bearer {FIRST}"}) as http:
            refused = {}
            for body in (json.dumps({"params": {"arguments": {"fetch": [1] * 50_000}}}), "[" * 100_000, "x" * 70_000):
                answer = await http.post(address, content=body)
                refused[answer.json()["error"]["message"][:25]] = answer.status_code
            too_large = await http.post(address, content=in_pieces(17))
        assert refused == {
            "the request has 150038 by": 413,
            "the body is no JSON: maxi": 400,
            "the body is no JSON: Expe": 400,
        }
        assert too_large.status_code == 413 and "larger than the 16777216 bytes" in too_large.text
    assert max(parsed) <= guard.MOST_IN_LOOP_BYTES


FLOOD = "head " + "x" * 3_000_000 + " tail\n"


async def test_an_answer_fits_a_model_and_is_never_empty() -> None:
    drawn = dataclasses.replace(ok(""), displays=(Display("image/png", PNG),))
    answers = {"flood": ok(FLOOD), "silent": ok(""), "blank": ok("\n \n"), "drawn": drawn}
    async with listening(OWNERS, FakeSandbox(answers)) as address, client_of(address, FIRST) as client:
        flood = await client.call_tool("run_python", {"code": "flood"})
        assert len(flood.model_dump_json()) < 30_000
        assert text_of(flood).startswith("head ") and text_of(flood).endswith(" tail")
        assert "characters left out" in flood.structured_content["stdout"]
        (link,) = [part for part in flood.content if part.type == "resource_link"]
        (whole,) = (await client.read_resource(link.uri)).contents
        assert whole.text == FLOOD.rstrip("\n")
        async with client_of(address, SECOND) as other:
            with pytest.raises(mcp.MCPError, match="there is no output"):
                await other.read_resource(link.uri)
        for code in ("silent", "blank"):
            assert text_of(await client.call_tool("run_python", {"code": code})) == "[no output]"
        drawn = await client.call_tool("run_python", {"code": "drawn"})
        assert [part.type for part in drawn.content] == ["image"]  # which needs no text


async def test_what_is_no_http_has_the_form_of_other_errors(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(malformed, "LOG_EVERY_S", 0.0)
    async with listening(OWNERS) as address:
        line, body = await answer_to(port_of(address))
    told = json.loads(body)
    assert told["error"].pop("message").startswith("the request is not HTTP: ")
    assert (" 400 " in line, told) == (True, {"jsonrpc": "2.0", "id": None, "error": {"code": -32000}})
    assert caplog.text.count("is not HTTP") == 1


async def test_a_cell_that_ends_its_session_says_so() -> None:
    sandbox = FakeSandbox({"exit": dataclasses.replace(ok("bye\n"), status=Status.ERROR, exit_code=3)})
    async with listening(Owners(), sandbox) as address, client_of(address) as client:
        ended = await client.call_tool("run_cell", {"code": "exit"})
        assert "the session is gone: died" in text_of(ended)
        assert ended.structured_content["session_ended"] == "died"
        more = {"code": "exit", "session": ended.structured_content["session"]}
        gone = text_of(await client.call_tool("run_cell", more))
        assert "session is gone" in gone and "fake-" not in gone


async def test_probes_need_no_token_and_refusals_have_one_form(caplog: pytest.LogCaptureFixture) -> None:
    sandbox = FakeSandbox({"print(1)": ok("1\n")})
    async with listening(OWNERS, sandbox) as address, httpx2.AsyncClient() as http:
        base = address.removesuffix("/mcp")
        assert (await http.get(base + "/healthz")).json() == {"status": "ok"}
        assert (await http.get(base + "/readyz")).json() == {"ready": True}
        own = {"Authorization": f"Bearer {FIRST}", **TAKES}
        refused = [
            await http.post(address, json={}),
            await http.post(base + "/nothing", json={}, headers=own),
            await http.post(base + "/readyz"),
        ]
        assert [one.status_code for one in refused] == [401, 404, 405]
        assert all(one.json()["error"]["message"] for one in refused)
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(address))
        lines = (f"Authorization: Bearer {FIRST}", "Content-Length: 999999999", "Expect: 100-continue")
        writer.write(request_bytes("/mcp", None, *lines))
        assert b" 413 " in await reader.readline()
        writer.close()
        prompt = {"jsonrpc": "2.0", "id": 1, "method": "prompts/get", "params": {"name": "none"}}
        told = (await http.post(address, json=prompt, headers=own)).text
        assert "this server has no prompts" in told
    assert not any(record.exc_info for record in caplog.records)
