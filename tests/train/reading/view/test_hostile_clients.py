"""Clients of the viewer that attack it. What must come of each: tests/sandbox/attacks/expected.txt.

What is not HTTP: the tests of the service, which has the same parser.
"""

import asyncio
from pathlib import Path
from urllib.parse import quote

import aiohttp
import pytest

from rocstar.train.reading.view.reader import RunReader
from rocstar.train.reading.view.viewed_run import RunIndex
from rocstar.train.reading.view.web import PageServer

from .... import malformed_http
from ....malformed_http import LAST, said
from ....sandbox.service.test_hostile_clients import HOSTS
from .test_web import served

NUMBERS = ("-1", "-99999999999999999999", "0", "18446744073709551616", "9" * 5000, "1e3", "\u0661", "")
NAMES = ("..", "/etc", "made/../made", "..\\..", "a\0b", "\x1b[2J", ":", "0:../x", "a" * 5000)
OF_NUMBERS = ("from", "num", "row", "to", "bins", "step", "task")
OF_NAMES = ("run", "file", "of", "set", "a", "step", "filter", "sort")
USUAL = {"run": "made", "file": "step_000001", "row": "0", "step": "1", "task": "0", "num": "5"}


def routes_of(folder: Path) -> list[str]:
    resources = PageServer(RunReader(RunIndex((folder,)).runs, reveal=False)).app.router.resources()
    return [path.canonical for path in resources if path.canonical.startswith("/api/")]


async def no_fault(client: aiohttp.ClientSession, where: str) -> None:
    async with client.get(where) as answer:
        text = await answer.read()
    assert answer.status < 500, (where[:200], answer.status, text[:300])
    assert b"Traceback" not in text and b"\x1b" not in text, where[:200]


async def test_numbers_at_every_route(viewed: Path) -> None:
    routes = routes_of(viewed)
    assert len(routes) >= 16
    of_place = "run=made&file=step_000001&row=0"
    async with served(viewed) as (client, address):
        for path in routes:
            for name in OF_NUMBERS:
                for number in NUMBERS:
                    words = "&".join(f"{k}={quote(v)}" for k, v in {**USUAL, name: number}.items())
                    await no_fault(client, f"{address}{path}?{words}")
        for words in ("list?run=made&num=-1", f"tokens?{of_place}&to=-1", f"tokens?{of_place}&from=-9"):
            async with client.get(f"{address}/api/{words}") as answer:
                assert answer.status == 400 and "at least 0" in await answer.text()
        async with client.get(f"{address}/api/tokens?{of_place}&from=99999999999999999999&to=3") as answer:
            assert (await answer.json())["ids"] == []


async def test_names_that_climb(viewed: Path) -> None:
    async with served(viewed) as (client, address):
        for path in routes_of(viewed):
            for name in OF_NAMES:
                for text in NAMES:
                    words = "&".join(f"{k}={quote(v)}" for k, v in {**USUAL, name: text}.items())
                    await no_fault(client, f"{address}{path}?{words}")
        for at in ("../step_000001:0", "/etc/passwd:0", "a\0b:0"):
            await no_fault(client, f"{address}/export?run=made&at={quote(at)}")
        for row in ("-1", "", "9" * 5000, "\u0661"):
            async with client.get(f"{address}/export?run=made&at=step_000001:{quote(row)}") as answer:
                assert answer.status in (400, 404) and (await answer.json())["error"], row
        port = int(address.rpartition(":")[2])
        for target in (b"/static/../web.py", b"/static/%2e%2e/web.py", b"//etc/passwd", b"/%2e%2e/%2e%2e/etc/passwd"):
            assert (await said(port, malformed_http.of_target(target, b"GET") + LAST))[0][0] == 404


@pytest.mark.parametrize(
    "host",
    [
        *sorted(HOSTS),
        *("evil.example", "evil.example:8089", "127.0.0.1.evil.example", "localhost.evil.example"),
        *("0x7f.1", "\xff", ""),
    ],
)
async def test_hosts_and_origins(viewed: Path, host: str) -> None:
    async with served(viewed) as (_, address):
        port = int(address.rpartition(":")[2])
        targets = [b"/api/runs", b"http://localhost/api/runs"]
        if host not in HOSTS:
            targets += [b"/", b"/events", b"/nothing"]
        for target in targets:
            request = malformed_http.of_target(target, b"GET")
            request = request.replace(b"Host: localhost", b"Host: " + host.encode("latin-1"))
            first, *_ = (await said(port, request + LAST))[0]
            assert first == 200 if host in HOSTS else first in (400, 403), (request, first)
        for target in (b"/api/runs", b"/events", b"/export?run=made&at=step_000001:0"):
            for site in (b"cross-site", b"same-site", b"x"):
                request = malformed_http.of_target(target, b"GET", b"Sec-Fetch-Site: " + site + b"\r\n")
                assert (await said(port, request + LAST))[0][0] == 403


async def test_drops_of_a_request(viewed: Path) -> None:
    async with served(viewed) as (client, address):
        port = int(address.rpartition(":")[2])
        open_ones = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
        for _, writer in open_ones:
            writer.write(b"G")
        for _ in range(5):
            async with client.get(address + "/api/runs") as answer:
                assert answer.status == 200
        for _, writer in open_ones:
            writer.close()
