"""Attacks of clients on the endpoint. The expected result of each: tests/sandbox/attacks/expected.txt.

What is not HTTP, odd tokens and hosts: the tests of the service, which has the same parser and guard.
"""

import asyncio
from collections.abc import Iterator

from ... import malformed_http
from ...malformed_http import JSON_VALUES, LAST, said
from ...sandbox.service.test_hostile_clients import CLIMBING
from .conftest import QUESTION, Serving, scripted

COMPLETE = b"/tokenize"


async def test_names_that_climb(serving: Serving) -> None:
    async with serving(scripted(["4"])) as client:
        for name in CLIMBING:
            for path in (f"/v1/models/{name}", f"/{name}"):
                request = malformed_http.of_target(path.encode(), b"GET")
                first, *_ = (await said(client.port, request + LAST))[0]
                assert 400 <= first < 500, path


def json_forms() -> Iterator[tuple[str, bytes]]:
    numbers = ("max_tokens", "temperature", "seed", "n")
    fields = ("prompt", "messages", "tokens", *numbers, "stop", "tools", "model")
    yield from malformed_http.json_forms(b'{"model": "rocstar-raw", "%s": %s}', *fields)
    for name, value in JSON_VALUES.items():
        body = b'{"model": "rocstar-raw", "messages": [{"role": %s, "content": %s}]}' % (value, value)
        yield f"{name} in a message", body


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
