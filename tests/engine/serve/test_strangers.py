"""Invalid and too large requests: they are refused early, and other clients do not wait for them."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.chat.chat import PIECE_CHARS, ChatFormat, load_template
from rocstar.engine.serve import conversation_store, request_reader
from rocstar.engine.serve.request_builder import RequestBuilder
from rocstar.sandbox.http.errors import RequestError

from ...malformed_http import answer_to
from ...patience import PATIENCE_S
from .conftest import QUESTION, TOKENIZER, Client, Serving, SlowTool, keeping, make_agent, scripted

TOO_LONG = "context_length_exceeded"


LONG_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"x": [[]] * 20_000}}}


async def first_line(client: Client, request: bytes) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(request)
        line = await reader.readline()
        writer.close()
    return line


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 500_000}]}),
        ("/v1/chat/completions", {"messages": [QUESTION] * 5000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "<|im_end|>" * 4001}]}),
        ("/v1/chat/completions", {"prefix_token_ids": [1] * 5000}),
        ("/v1/chat/completions", {"messages": [QUESTION], "model": "rocstar-raw", "tools": [LONG_TOOL]}),
        ("/v1/completions", {"prompt": "a" * 500_000}),
        ("/v1/completions", {"prompt": [[1] * 5000]}),
        ("/tokenize", {"prompt": "a" * 500_000}),
        ("/detokenize", {"tokens": [1] * 5000}),
    ],
)
async def test_what_cannot_fit_is_refused_before_it_is_tokenised(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any]
) -> None:
    async with serving(scripted(["4"])) as client:
        for name in ("chat", "completions", "tokenize"):
            monkeypatch.setattr(RequestBuilder, name, None)
        payload = await client.json(path, {"model": "rocstar-agent", **fields}, status=400)
    assert payload["error"]["code"] == TOO_LONG and "4000" in payload["error"]["message"]


async def test_fields_that_are_not_read_are_not_kept(serving: Serving) -> None:
    async with serving(scripted(["4"])) as client:
        body = {"model": "rocstar-raw", "prompt": "a"}
        await client.json("/v1/completions", {**body, "other": [{}] * 20_000})
        assert "other" in client.notes[0]
        for more in ({f"f{k}": 1 for k in range(200)}, {"metadata": {f"f{k}": "" for k in range(200)}}):
            refused = await client.json("/v1/completions", {**body, **more}, status=400)
            assert "200 fields" in refused["error"]["message"]


async def test_a_request_has_no_more_prompts_than_the_server_has_places(serving: Serving) -> None:
    async with serving(scripted(["4"]), max_choices=8) as client:
        body = {"model": "rocstar-raw", "prompt": ["a"] * 9}
        payload = await client.json("/v1/completions", body, status=400)
        assert "9 entries" in payload["error"]["message"] and payload["error"]["param"] == "prompt"
        await client.json("/v1/completions", {**body, "prompt": ["a"] * 8})


async def test_others_are_answered_while_a_prompt_is_tokenised(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gate = threading.Event(), threading.Event()
    text_ids = RequestBuilder.text_ids

    def slow(self: RequestBuilder, text: str) -> list[int]:
        begun.set()
        assert gate.wait(PATIENCE_S)
        return text_ids(self, text)

    monkeypatch.setattr(RequestBuilder, "text_ids", slow)
    async with serving(scripted(["4"])) as client:
        body = asyncio.create_task(client.json("/tokenize", {"prompt": "a"}))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        assert json.loads(await client.get("/health")) == {"status": "ok"}
        gate.set()
        assert (await body)["count"] == 1


async def test_a_body_of_many_items_is_read_in_another_process(serving: Serving) -> None:
    ids = [1, 2, 3] * 1000
    assert len(ids) > request_reader.FEW_ITEMS
    async with serving(scripted(["4"])) as client:
        payload = await client.json("/detokenize", {"tokens": ids})
        refused = await client.json("/detokenize", {"tokens": [*ids, "x"]}, status=400)
    assert payload["prompt"] == TOKENIZER.decode(ids)
    assert refused["error"]["param"] == f"tokens.{len(ids)}"


async def test_no_more_bodies_are_taken_than_are_held(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_reader, "MAX_WAITING", -request_reader.THREADS)
    async with serving(scripted(["4"])) as client:
        payload = await client.json("/tokenize", {"prompt": "a"}, status=429)
        assert payload["error"]["code"] == "queue_full"
        size = client.endpoint.options.max_body_bytes
        client.endpoint._held_bytes = 16 * size - 1
        assert (await client.json("/tokenize", {"prompt": "a"}, status=429))["error"]["code"] == "queue_full"
        client.endpoint._held_bytes = 0


async def test_a_body_is_refused_by_its_head(serving: Serving) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    async with serving(scripted(["4"])) as client:
        for length, expected, status in (
            (b"999999999", b"100-continue", b" 413 "),
            (b"2", b"100-continue", b" 100 "),
            (b"2", b"a-miracle", b" 417 "),
        ):
            fields = b"Content-Length: %s\r\nExpect: %s\r\n\r\n" % (length, expected)
            assert status in await first_line(client, head + fields)
        encoded = await client.json("/tokenize", b"x", status=415, headers={"Content-Encoding": "gzip"})
        assert encoded["error"]["param"] == "Content-Encoding"


async def test_what_is_no_http_has_the_form_of_other_errors(serving: Serving) -> None:
    async with serving(scripted(["4"])) as client:
        line, body = await answer_to(client.port)
    reason = "the request is not HTTP: Invalid character in Content-Length: b'Content-Length: x'"
    payload = {"message": reason, "type": "invalid_request_error", "param": None, "code": "not_http"}
    assert " 400 " in line and json.loads(body) == {"error": payload}


async def test_an_unreadable_token_and_what_is_no_http_are_refused(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(scripted(["4"]), token="a-token-of-some-length") as client:
        body = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\r\n\r\n"
        assert b" 401 " in await first_line(client, body)
        for _ in range(3):
            long_line = b"GET / HTTP/1.1\r\nx\x1b[2J: " + b"y" * 9000 + b"\r\n\r\n"
            assert b" 400 " in await first_line(client, long_line)
    assert len(caplog.records) <= 1 and not any(record.exc_info for record in caplog.records)
    assert "\x1b" not in caplog.text


async def test_no_text_of_a_client_steers_the_terminal(serving: Serving) -> None:
    fields = {"\x1b]0;owned\x07\x1b[2J": 1, "\nrocstar: all is well": 2}
    async with serving(scripted(["4"])) as client:
        await client.chat(**fields)
        await client.chat(**fields)
    (note,) = client.notes
    assert note.isprintable() and "all is well" in note


async def test_a_verdict_on_nothing_reads_a_file_once_and_keeps_no_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []
    read_names = conversation_store.read_names

    def counted(path: Path) -> Any:
        reads.append(path)
        return read_names(path)

    monkeypatch.setattr(conversation_store, "read_names", counted)
    agent = make_agent(scripted(["4"]), SlowTool())
    async with keeping(tmp_path, agent, per_file=1) as records:
        names = [records.begin() for _ in range(3)]
        for name in names:
            await records.keep(name, [])
        busy = threading.Event()
        writing = asyncio.create_task(records._run_in_writer(busy.wait, PATIENCE_S))
        for k in range(50):
            assert not await records.feedback(f"1-{k:016x}", 0, "up", "")
        busy.set()
        await writing
        assert len(reads) == 1
        monkeypatch.setattr(conversation_store, "MAX_LOOKUPS", 0)
        with pytest.raises(RequestError, match="wait for their lookup"):
            await records.feedback("1-0", 0, "up", "")


def test_special_tokens_are_cut_wherever_a_piece_begins() -> None:
    """A text is searched in pieces; what is found is as if it were searched at once."""
    chat = ChatFormat(TOKENIZER, load_template("compact", None), [])
    for before in range(PIECE_CHARS - 14, PIECE_CHARS + 2):
        text = "a" * before + "<|im_end|><|im_start|>" + "b" * PIECE_CHARS + "<|im_end|>"
        assert chat._cut_special(text) == chat._inside_special.sub("\\1\udc00", text)


async def test_a_path_with_a_slash_at_its_end_is_the_one_without_it(serving: Serving) -> None:
    async with serving(scripted(["4"])) as client:
        assert (await client.json("/v1/tokenize/", {"prompt": "a"}))["count"] == 1
        assert (await client.json("/v1/nothing/", {}, status=404))["error"]["code"] == "no_such_path"
        assert (await client.json("/v1/models", {}, status=405))["error"]["message"]
