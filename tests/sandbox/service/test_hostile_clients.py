"""Clients of the service that attack it. What must come of each: tests/sandbox/attacks/expected.txt."""

import asyncio
import logging
import re
from contextlib import suppress
from typing import Any

import pytest

from rocstar.sandbox.http.guard import RUN_HEADER, Owner, Owners
from tests.fakes.sandbox import FakeSandbox, ok

from ... import malformed_http
from ...malformed_http import CHUNKS, LAST, LENGTHS, LINES, said
from ...patience import PATIENCE_S
from .conftest import HeldSandbox

ONE, TWO = "0123456789abcdef-one", "0123456789abcdef-two"
OWNERS = Owners((Owner(name="one", token=ONE), Owner(name="two", token=TWO)))
RUN = b"/v1/run"
ACCEPTED = frozenset(("an extension without end",))
"""An extension of a chunk has no bound: it is skipped as it arrives, within the time of a body."""


def by(token: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", **more}


async def first_status(service: Any, request: bytes) -> int:
    return (await said(service.port, request + LAST))[0][0]


async def refused(serve: Any, request: bytes) -> None:
    fake = FakeSandbox({}, otherwise=ok())
    async with serve(fake, body_timeout_s=0.5) as service:
        statuses, _ = await said(service.port, request + LAST)
        assert statuses in ([400], []), statuses
        assert (await service.get("/healthz"))[0] == 200
    assert fake.requests == []


@pytest.mark.parametrize("name", LENGTHS)
async def test_lengths_of_two_kinds(serve: Any, name: str) -> None:
    await refused(serve, malformed_http.of_length(RUN, name))


@pytest.mark.parametrize("name", LINES)
async def test_lines_that_are_none(serve: Any, name: str) -> None:
    await refused(serve, malformed_http.of_lines(RUN, name))


@pytest.mark.parametrize("name", sorted(CHUNKS.keys() - ACCEPTED))
async def test_chunks_that_are_none(serve: Any, name: str) -> None:
    await refused(serve, malformed_http.of_chunks(RUN, name))


@pytest.mark.parametrize("pieces", [malformed_http.endless_headers, malformed_http.endless_header])
async def test_headers_without_end(serve: Any, pieces: Any) -> None:
    async with serve(FakeSandbox({})) as service:
        statuses, sent = await said(service.port, pieces())
        assert statuses in ([400], []) and sent < sum(map(len, pieces())), (statuses, sent)
        assert (await service.get("/healthz"))[0] == 200


METHODS = {
    "a tunnel": b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a tunnel to a path": b"CONNECT /v1/run HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a trace": b"TRACE /v1/run HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a websocket": b"GET /v1/run HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/2 by upgrade": b"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\n"
    b"Connection: Upgrade, HTTP2-Settings\r\n"
    b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nContent-Length: 16\r\n\r\n" + malformed_http.BODY,
    "another's authority": malformed_http.of_target(b"http://evil.example/v1/run"),
    "an asterisk": malformed_http.of_target(b"*"),
    "two slashes": malformed_http.of_target(b"//v1/run"),
    "an authority for a path": malformed_http.of_target(b"//localhost/v1/run"),
    "a path that climbs": malformed_http.of_target(b"/healthz/../v1/run"),
    "a path that climbs in code": malformed_http.of_target(b"/healthz/%2e%2e/v1/run"),
    "a slash in code": malformed_http.of_target(b"/v1%2frun"),
    "a backslash": malformed_http.of_target(b"/v1\\run"),
    "no code": malformed_http.of_target(b"/v1/%zz"),
    "small letters": malformed_http.of_target(b"/v1/run", b"post"),
    "no method": malformed_http.of_target(b"/v1/run", b"FOO"),
    "another method by a header": malformed_http.of_target(b"/v1/run", b"GET", b"X-HTTP-Method-Override: POST\r\n"),
    "another path by a header": malformed_http.of_target(b"/healthz", b"POST", b"X-Original-URL: /v1/run\r\n"),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("owners", [Owners(), OWNERS], ids=["open", "tokens"])
async def test_methods_that_nobody_knows(serve: Any, name: str, owners: Owners) -> None:
    fake = FakeSandbox({}, otherwise=ok())
    async with serve(fake, owners=owners) as service:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await service.send(METHODS[name])
            assert re.match(rb"HTTP/1\.[01] 4", await reader.readline())
            writer.close()
        assert (await service.get("/healthz"))[0] == 200
    assert fake.requests == []


@pytest.mark.parametrize(
    "header",
    [
        *(b"", b"\0", b"\xff\xfe", b"\xc0\xae", ONE[:-1].encode(), ONE.encode() + b"\0", ONE.encode() + b"\xa0"),
        *(b", " + ONE.encode(), ONE.encode() + b", " + TWO.encode(), b"x" * 65_000, b"\t", b"%s", b"{0}"),
        b"x\r\nAuthorization: Bearer " + ONE.encode(),
    ],
    ids=lambda header: repr(header[:24]),
)
async def test_tokens_of_odd_bytes(serve: Any, header: bytes) -> None:
    fake = FakeSandbox({}, otherwise=ok())
    async with serve(fake, owners=OWNERS) as service:
        more = b"Authorization: Bearer " + header + b"\r\n"
        assert await first_status(service, malformed_http.of_target(RUN, b"POST", more)) in (400, 401)
    assert fake.requests == []


CLIMBING = (
    *("..", "../x", "a/../../x", "%2e%2e/x", "%2e%2e%2fx", "%252e%252e%252fx", "..%5cx", "a%00b", "%00", "."),
    *("a//b", "/etc/passwd", "%2fetc%2fpasswd", "~root", "a%0ab", "a%1b[2J", "a%ff", "%c0%ae%c0%ae/x"),
    *("%ed%a0%80", ".display/0", "con", "a" * 300, "a" * 7000),
)
PLAIN = frozenset(("%252e%252e%252fx", "..%5cx", "~root", "con", ".display/0", "a%ff", "%c0%ae%c0%ae/x", "%ed%a0%80"))
"""Names of files like any other: nothing decodes them again, a backslash is a letter, and codes of what is no
UTF-8 stay codes."""


@pytest.mark.parametrize("name", CLIMBING, ids=lambda name: name[:20])
async def test_names_that_climb(serve: Any, name: str) -> None:
    fake = FakeSandbox({}, otherwise=ok())
    async with serve(fake) as service:
        _, opened = await service.post("/v1/sessions", {})
        for path in (f"/v1/sessions/{opened['id']}/files/{name}", f"/v1/sessions/{name}/files/x"):
            for method in (b"GET", b"PUT"):
                first = await first_status(service, malformed_http.of_target(path.encode(), method))
                taken = name in PLAIN and path.endswith(name) and method == b"PUT"
                assert first == 204 if taken else 400 <= first < 500, (path, method, first)
    names = [file for request in fake.requests for file in (*request.files, *request.fetch)]
    assert not any(part in ("", ".", "..") for file in names for part in file.split("/"))


async def test_every_route_with_the_session_of_another(serve: Any) -> None:
    fake = FakeSandbox({}, otherwise=ok())
    async with serve(fake, owners=OWNERS) as service:
        _, mine = await service.post("/v1/sessions", {}, headers=by(ONE))
        routes = [(method, path) for method, path in service.service.routes if "{id}" in path]
        assert len(routes) >= 5
        for method, path in routes:
            answers = []
            for identity in (mine["id"], "no-such-session"):
                where = path.replace("{id}", identity).replace("{name}", "a")
                asked = service.http.request(method, where, data=b'{"code": "x"}', headers=by(TWO))
                async with asked as answer:
                    answers.append((answer.status, (await answer.text()).replace(identity, "ID")))
            assert answers[0] == answers[1] and 400 <= answers[0][0] < 500, (method, path, answers)
        path = f"/v1/sessions/{mine['id']}/run"
        assert (await service.post(path, {"code": "x"}, headers=by(ONE)))[0] == 200
    assert {request.owner for request in fake.requests} == {"one"}


async def test_json_of_every_kind(serve: Any) -> None:
    async with serve(FakeSandbox({}, otherwise=ok())) as service:
        _, opened = await service.post("/v1/sessions", {})
        routes = [path for method, path in service.service.routes if method == "POST"]
        assert len(routes) >= 12
        for path in routes:
            where = path.replace("{id}", opened["id"])
            for name, body in malformed_http.json_forms(b'{"%s": %s}', "code", "cells", "requests", "wall_s"):
                async with service.http.post(where, data=body, headers={"Expect": ""}) as answer:
                    text = await answer.text()
                assert answer.status < 500, (path, name, answer.status, text[:300])
                assert "\x1b" not in text and "Traceback" not in text
        assert (await service.post("/v1/run", {"code": "x"}))[0] == 200


@pytest.mark.parametrize("key", [b"\xff", b"a\xc3\xa9", b"\t a", b"a" * 5000, b"", b"{}", b"one:k", b"\x1b[2J"])
async def test_keys_of_odd_bytes(serve: Any, key: bytes) -> None:
    fake = FakeSandbox(lambda request: ok(request.owner))
    async with serve(fake, owners=OWNERS) as service:
        for token, owner in ((ONE, "one"), (TWO, "two")):
            more = b"Authorization: Bearer %s\r\nIdempotency-Key: %s\r\n" % (token.encode(), key)
            first = await first_status(service, malformed_http.of_target(RUN, b"POST", more))
            assert first in (200, 400)
            assert first == 400 or fake.requests[-1].owner == owner


async def test_half_closed_and_reset(serve: Any, until: Any) -> None:
    held = HeldSandbox()
    async with serve(held, max_held_bytes=1 << 20) as service:
        whole = malformed_http.of_target(RUN)
        for cut in (1, 20, len(whole) - 10, len(whole)):
            for resets in (True, False):
                _, writer = await service.send(whole[:cut])
                if cut == len(whole):
                    await held.until_running(1)
                if resets:
                    writer.transport.abort()
                else:
                    writer.write_eof()
                await held.until_running(0)
                await until(lambda: len(service.service.connections) <= 1)
                writer.close()
        assert service.service.admission.held.taken == 0
        assert service.service._body_reader.held.taken == 0
        assert service.service.metrics.in_flight == 0


async def test_no_text_of_a_client_reaches_the_log_as_it_came(
    serve: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    escape = b"\x1b]0;owned\x07"
    caplog.set_level(logging.DEBUG)
    async with serve(FakeSandbox({}, otherwise=ok())) as service:
        for request in (
            malformed_http.of_target(b"/" + escape),
            malformed_http.of_target(b"/%1b]0;owned%07%0aok"),
            malformed_http.of_target(RUN, escape),
            *(
                malformed_http.of_target(RUN, b"POST", name + b": a" + escape + b"\r\n")
                for name in (b"User-Agent", b"Idempotency-Key", RUN_HEADER.encode(), b"X" + escape, b"Accept")
            ),
            malformed_http.of_target(RUN, b"POST", b"Expect: \xff\x9b2J\r\n"),
            malformed_http.of_target(RUN, b"POST", b"Content-Encoding: \xc2\x9b2J\r\n"),
        ):
            await said(service.port, request + LAST)
    told = caplog.text + "".join(capfd.readouterr())
    assert not re.search(r"[^\n\t -~]", told), told


HOSTS = {
    *("localhost", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:80", "LOCALHOST", "LOCALHOST:80", "a.localhost"),
    *("a.localhost.", "10.0.0.7"),
}
"""Addresses and names of this machine: nobody else can make a name of these."""


OTHERS = (
    *("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "0x7f.1"),
    *("2130706433", "127.1", "evil.example:80", "[::1].evil.example", "localhost%00.evil.example", "", "\xff"),
    *("127.0.0.1/x", "[::1]x:80", "127.0.0.1:80:90", "::1"),
    *("localhost,evil.example", "localhost evil.example", "localhost/evil", "localhost#evil"),
)


@pytest.mark.parametrize("host", [*sorted(HOSTS), *OTHERS])
async def test_hosts_and_origins(serve: Any, host: str) -> None:
    """Without a token a web page is refused under a name that somebody made to stand for loopback."""
    fake = FakeSandbox({}, otherwise=ok())
    async with serve(fake) as service:
        sent = host.encode("latin-1")
        request = malformed_http.of_target(RUN).replace(b"Host: localhost", b"Host: " + sent)
        first = await first_status(service, request)
        assert first == 200 if host in HOSTS else first in (400, 403), first
        origins = (b"null", b"http://" + sent + b".evil.example", b"https://" + sent, b"file://", b"")
        pages = [(b"Origin: " + origin, (400, 403)) for origin in origins]
        pages += [(b"Sec-Fetch-Site: " + site, (403,)) for site in (b"cross-site", b"same-site", b"x")]
        for header, statuses in pages:
            page = malformed_http.of_target(RUN, b"POST", header + b"\r\n")
            assert await first_status(service, page) in statuses, header
    assert len(fake.requests) == (host in HOSTS)


async def test_drops_of_a_request(serve: Any, until: Any) -> None:
    """One byte of a head, or of a body, after the other, until the service has had enough."""
    fake = FakeSandbox({}, otherwise=ok())
    whole = malformed_http.of_target(RUN).replace(b"Length: 16", b"Length: 9999")
    async with serve(fake, max_connections=32, header_timeout_s=0.5, body_timeout_s=0.5) as service:
        dripping = []
        for number in range(40):
            head, drop = (b"\r\n\r\n", b" ") if number % 2 else (whole[:1], b"x")
            reader, writer = await service.send(whole[: whole.index(head) + len(head)])
            dripping.append(asyncio.create_task(drip(reader, writer, drop)))
        for _ in range(5):
            assert (await service.post("/v1/run", {"code": "x"}))[0] == 200
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*dripping)
    assert {request.code for request in fake.requests} == {"x"}


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, drop: bytes) -> None:
    ended = asyncio.create_task(reader.read())
    while not ended.done():
        writer.write(drop)
        await asyncio.wait([ended], timeout=0.02)
    with suppress(ConnectionError):
        await ended
    writer.close()
