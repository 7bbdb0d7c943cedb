"""An answer that goes out at once says what aiohttp's own would."""

import asyncio
from typing import Any

import pytest

from rocstar.sandbox.testing import FakeSandbox, ok

BODY = b'{"code": "1"}'


async def ask(port: int, version: str, *more: str) -> tuple[bytes, dict[str, bytes], bytes, bool]:
    """Status line, headers, body, and whether the connection goes on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = (f"POST /v1/run HTTP/{version}", "Host: localhost", f"Content-Length: {len(BODY)}", *more, "", "")
    try:
        writer.write("\r\n".join(lines).encode() + BODY)
        status, *rest = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[:-2]
        pairs = (line.split(b": ", 1) for line in rest)
        headers = {name.decode().lower(): value for name, value in pairs}
        body = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == b"close":
            return status, headers, body, await reader.read(1) != b""
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return status, headers, body, b"200 OK" in await reader.readline()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("version", "more"), [("1.1", "Connection: close"), ("1.0", "Connection: keep-alive")]
)
async def test_it_is_aiohttps_own_answer(serve: Any, version: str, more: str) -> None:
    """The same in a way that aiohttp's own takes, but for when, and for what is said of the connection."""
    async with serve(FakeSandbox({"1": ok("\u00e9" * 20_000 + "\n")})) as service:
        status, headers, body, goes_on = await ask(service.port, "1.1")
        other_status, other_headers, other_body, other_goes_on = await ask(service.port, version, more)
    assert goes_on and other_goes_on is ("close" not in more)
    assert (status.split(b" ", 1)[1], body) == (other_status.split(b" ", 1)[1], other_body)
    assert len(headers["date"]) == len(other_headers["date"])
    assert f"Connection: {other_headers.pop('connection').decode()}" == more
    del headers["date"], other_headers["date"]
    assert headers == other_headers


async def test_a_body_that_waits_to_be_asked_for_is(serve: Any) -> None:
    async with serve(FakeSandbox({"1": ok("one\n")})) as service:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        head = f"POST /v1/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(BODY)}\r\nExpect: "
        writer.write(head.encode() + b"100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        assert b"200 OK" in await reader.readline()
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        for expected, status in ((b"a-miracle", b"417"), (b"", b"200 OK")):
            reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
            writer.write(head.encode() + expected + b"\r\n\r\n" + BODY)
            assert status in await reader.readline()
            writer.close()
