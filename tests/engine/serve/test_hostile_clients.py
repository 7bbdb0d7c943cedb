"""Attacks of clients on the endpoint. The expected result of each: tests/sandbox/attacks/expected.txt."""

import asyncio
from collections.abc import Iterator

from ... import malformed_http
from ...malformed_http import CHUNKS, LAST, LENGTHS, LINES, said
from ...sandbox.service.test_hostile_clients import ACCEPTED, CLIMBING, HOSTS
from .conftest import QUESTION, Serving, scripted

COMPLETE = b"/tokenize"
TOKEN = "a-token-of-some-length"
NOT_HTTP = (
    *(malformed_http.of_length(COMPLETE, name) for name in LENGTHS),
    *(malformed_http.of_lines(COMPLETE, name) for name in LINES),
    *(malformed_http.of_chunks(COMPLETE, name) for name in sorted(CHUNKS.keys() - ACCEPTED)),
)


async def test_requests_that_are_not_http(serving: Serving) -> None:
    async with serving(scripted(["4"]), body_timeout_s=0.5) as client:
        for request in NOT_HTTP:
            statuses, _ = await said(client.port, request + LAST.replace(b"/healthz", b"/health"))
            assert statuses in ([400], []), (request[:200], statuses)
            await client.get("/health")
        for pieces in (malformed_http.endless_headers, malformed_http.endless_header):
            statuses, sent = await said(client.port, pieces())
            assert statuses in ([400], []) and sent < sum(map(len, pieces())), (statuses, sent)
            await client.get("/health")


async def test_names_that_climb(serving: Serving) -> None:
    async with serving(scripted(["4"])) as client:
        for name in CLIMBING:
            for path in (f"/v1/models/{name}", f"/{name}"):
                request = malformed_http.of_target(path.encode(), b"GET")
                first, *_ = (await said(client.port, request + LAST))[0]
                assert 400 <= first < 500, path


def json_forms() -> Iterator[tuple[str, bytes]]:
    values = {
        "depth": b"[" * 5000 + b"]" * 5000,
        "depth of objects": b'{"a":' * 5000 + b"1" + b"}" * 5000,
        "a huge number": b"1" + b"0" * 5000,
        "a huge exponent": b"1e999999999",
        "NaN": b"NaN",
        "Infinity": b"-Infinity",
        "half a pair": b'"\\ud800"',
        "NUL": b'"\\u0000"',
        "escapes": b'"\\u001b]0;owned\\u0007"',
        "no UTF-8": b'"\xff\xfe"',
        "nothing": b"null",
        "true": b"true",
        "lists": b"[[[]],{}]",
        "minus": b"-1",
        "no sum": b"[-1, 9223372036854775808, 1e300]",
    }
    numbers = ("max_tokens", "temperature", "seed", "n")
    fields = ("messages", "prompt", "tokens", *numbers, "stop", "tools", "model")
    for name, value in values.items():
        yield name, value
        for field in fields:
            body = b'{"model": "rocstar-raw", "%s": %s}' % (field.encode(), value)
            yield f"{name} as {field}", body
        body = b'{"model": "rocstar-raw", "messages": [{"role": %s, "content": %s}]}' % (value, value)
        yield f"{name} in a message", body
    yield "much depth", b"[" * 1_000_000
    yield "nothing at all", b""
    yield "a mark", b'\xef\xbb\xbf{"prompt": "x"}'
    yield "UTF-16", '{"prompt": "x"}'.encode("utf-16")
    yield "names twice", b'{"prompt": "x", "prompt": 1, "prompt": "y"}'
    yield "two values", b'{"prompt": "x"} {"prompt": "y"}'
    yield "no end", b'{"prompt": "x'


async def test_json_of_every_kind(serving: Serving) -> None:
    paths = ["v1/chat/completions", "v1/completions", "v1/feedback", "tokenize", "v1/tokenize", "detokenize"]
    async with serving(lambda request: "4", keeps=True) as client:
        for path in paths:
            for name, body in json_forms():
                async with client.post(f"/{path}", body) as answer:
                    text = await answer.text()
                assert answer.status < 500, (path, name, answer.status, text[:300])
                assert "\x1b" not in text and "Traceback" not in text
        await client.chat(QUESTION)
    assert all(note.isprintable() for note in client.notes)


async def test_hosts_and_origins(serving: Serving) -> None:
    async with serving(scripted(["4"])) as client:
        plain = malformed_http.of_target(b"/v1/models", b"GET")
        for host in (*sorted(HOSTS), "evil.example", "127.0.0.1.evil.example", "0x7f.1", "\xff", ""):
            request = plain.replace(b"Host: localhost", b"Host: " + host.encode("latin-1"))
            first, *_ = (await said(client.port, request + LAST))[0]
            assert first == 200 if host in HOSTS else first in (400, 403), (host, first)
        for header in (b"Origin: null", b"Origin: http://evil.example", b"Sec-Fetch-Site: cross-site"):
            request = malformed_http.of_target(b"/v1/models", b"GET", header + b"\r\n")
            assert (await said(client.port, request + LAST))[0][0] == 403


async def test_tokens_of_odd_bytes(serving: Serving) -> None:
    token = TOKEN.encode()
    async with serving(scripted(["4"]), token=TOKEN) as client:
        for odd in (b"", b"\0", b"\xff\xfe", token[:-1], token + b"\xa0", b", " + token):
            header = b"Authorization: Bearer " + odd + b"\r\n"
            request = malformed_http.of_target(b"/v1/models", b"GET", header)
            assert (await said(client.port, request + LAST))[0][0] in (400, 401), odd


async def test_drops_of_a_request(serving: Serving) -> None:
    """Connections that send a part of a request, or nothing, leave room for others."""
    whole = malformed_http.of_target(COMPLETE).replace(b"Length: 16", b"Length: 9999")
    async with serving(scripted(["4"]), max_connections=16) as client:
        open_ones = [await asyncio.open_connection("127.0.0.1", client.port) for _ in range(40)]
        for number, (_, writer) in enumerate(open_ones):
            writer.write(whole[: (0, 1, whole.index(b"\r\n\r\n") + 4)[number % 3]])
        for _ in range(5):
            assert (await client.json("/tokenize", {"prompt": "a"}))["count"] == 1
        assert len(client.endpoint.connections) <= 16
        for _, writer in open_ones:
            writer.close()
