"""Clients of the endpoint that attack it. What must come of each: tests/sandbox/attacks/expected.txt."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from ... import crooked_http
from ...crooked_http import CHUNKS, LAST, LENGTHS, LINES, said
from ...sandbox.service.test_hostile_clients import ACCEPTED, CLIMBING, HOSTS
from .conftest import QUESTION, Client, Serving, scripted

COMPLETE = b"/tokenize"
TOKEN = "a-token-of-some-length"


def port_of(client: Client) -> int:
    return int(client.listening.url.rpartition(":")[2])


async def refused(serving: Serving, request: bytes) -> None:
    async with serving(scripted(["4"]), body_timeout_s=0.5) as client:
        statuses, _ = await said(port_of(client), request + LAST.replace(b"/healthz", b"/health"))
        assert statuses in ([400], []), statuses
        await client.get("/health")


@pytest.mark.parametrize("name", LENGTHS)
async def test_lengths_of_two_kinds(serving: Serving, name: str) -> None:
    await refused(serving, crooked_http.of_length(COMPLETE, name))


@pytest.mark.parametrize("name", LINES)
async def test_lines_that_are_none(serving: Serving, name: str) -> None:
    await refused(serving, crooked_http.of_lines(COMPLETE, name))


@pytest.mark.parametrize("name", sorted(CHUNKS.keys() - ACCEPTED))
async def test_chunks_that_are_none(serving: Serving, name: str) -> None:
    await refused(serving, crooked_http.of_chunks(COMPLETE, name))


@pytest.mark.parametrize("pieces", [crooked_http.endless_headers, crooked_http.endless_header])
async def test_headers_without_end(serving: Serving, pieces: Any) -> None:
    async with serving(scripted(["4"])) as client:
        statuses, sent = await said(port_of(client), pieces())
        assert statuses in ([400], []) and sent < sum(map(len, pieces())), (statuses, sent)
        await client.get("/health")


@pytest.mark.parametrize("name", CLIMBING, ids=lambda name: name[:20])
async def test_names_that_climb(serving: Serving, name: str) -> None:
    async with serving(scripted(["4"])) as client:
        for path in (f"/v1/models/{name}", f"/{name}"):
            request = crooked_http.of_target(path.encode(), b"GET")
            first, *_ = (await said(port_of(client), request + LAST))[0]
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
    fields = (
        "messages",
        "prompt",
        "tokens",
        "max_tokens",
        "temperature",
        "seed",
        "n",
        "stop",
        "tools",
        "model",
    )
    for name, value in values.items():
        yield name, value
        for field in fields:
            body = b'{"model": "rocstar-raw", "%s": %s}' % (field.encode(), value)
            yield f"{name} as {field}", body
        yield (
            f"{name} in a message",
            b'{"model": "rocstar-raw", "messages": [{"role": %s, "content": %s}]}'
            % (
                value,
                value,
            ),
        )
    yield "much depth", b"[" * 1_000_000
    yield "nothing at all", b""
    yield "a mark", b'\xef\xbb\xbf{"prompt": "x"}'
    yield "UTF-16", '{"prompt": "x"}'.encode("utf-16")
    yield "names twice", b'{"prompt": "x", "prompt": 1, "prompt": "y"}'
    yield "two values", b'{"prompt": "x"} {"prompt": "y"}'
    yield "no end", b'{"prompt": "x'


async def test_json_of_every_kind(serving: Serving) -> None:
    paths = (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/feedback",
        "/tokenize",
        "/v1/tokenize",
        "/detokenize",
    )
    async with serving(lambda request: "4", keeps=True) as client:
        for path in paths:
            for name, body in json_forms():
                async with client.post(path, body) as answer:
                    text = await answer.text()
                assert answer.status < 500, (path, name, answer.status, text[:300])
                assert "\x1b" not in text and "Traceback" not in text
        await client.chat(QUESTION)
    assert all(note.isprintable() for note in client.notes)


@pytest.mark.parametrize(
    "host", [*sorted(HOSTS), "evil.example", "127.0.0.1.evil.example", "0x7f.1", "\xff", ""]
)
async def test_hosts_and_origins(serving: Serving, host: str) -> None:
    async with serving(scripted(["4"])) as client:
        plain = crooked_http.of_target(b"/v1/models", b"GET")
        request = plain.replace(b"Host: localhost", b"Host: " + host.encode("latin-1"))
        first, *_ = (await said(port_of(client), request + LAST))[0]
        assert first == 200 if host in HOSTS else first in (400, 403), first
        for header in (b"Origin: null", b"Origin: http://evil.example", b"Sec-Fetch-Site: cross-site"):
            request = crooked_http.of_target(b"/v1/models", b"GET", header + b"\r\n")
            assert (await said(port_of(client), request + LAST))[0][0] == 403


@pytest.mark.parametrize(
    "header", [b"", b"\0", b"\xff\xfe", TOKEN[:-1].encode(), TOKEN.encode() + b"\xa0", b", " + TOKEN.encode()]
)
async def test_tokens_of_odd_bytes(serving: Serving, header: bytes) -> None:
    async with serving(scripted(["4"]), token=TOKEN) as client:
        request = crooked_http.of_target(b"/v1/models", b"GET", b"Authorization: Bearer " + header + b"\r\n")
        assert (await said(port_of(client), request + LAST))[0][0] in (400, 401)


async def test_drops_of_a_request(serving: Serving) -> None:
    whole = crooked_http.of_target(COMPLETE).replace(b"Length: 16", b"Length: 9999")
    async with serving(scripted(["4"]), max_connections=32) as client:
        open_ones = [await asyncio.open_connection("127.0.0.1", port_of(client)) for _ in range(40)]
        for number, (_, writer) in enumerate(open_ones):
            writer.write(whole[: whole.index(b"\r\n\r\n") + 4 if number % 2 else 1])
        for _ in range(5):
            assert (await client.json("/tokenize", {"prompt": "a"}))["count"] == 1
        for _, writer in open_ones:
            writer.close()
