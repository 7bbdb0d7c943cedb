"""A stand-in for an endpoint of OpenAI's /v1/completions: vLLM's dialect, llama.cpp's, or text alone.

Continues id n with n + 1, and says `text` where it speaks text. Streamed or at once it says the same; `cuts`
says into what pieces a stream falls. Its answers have the fields that the recorded ones of the real servers
have (`tests/engine/recordings`), as far as anybody reads them.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.fakes.scripted_policy import ByteTokenizer

TOKENIZER = ByteTokenizer()
STOP = TOKENIZER.id_of("<|im_end|>")
VOCAB = TOKENIZER.vocab_size


STANDARD_FIELDS = {
    *("model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop", "stream"),
    *("presence_penalty", "frequency_penalty", "stream_options"),
}


def one_by_one(length: int) -> list[int]:
    return list(range(1, length + 1))


class Endpoint:
    """`requests` records the bodies. `release`: answers, and pieces from the second on, wait for it."""

    def __init__(self, *, with_ids: bool, text: str = "four", spells: bool = False, room: int = 1 << 20) -> None:
        """spells: llama.cpp's dialect. room: how many tokens an answer may have, whatever was asked for."""
        self.with_ids, self.text, self.spells, self.room = with_ids, text, spells, room
        self.strict = False
        """Refuses fields that OpenAI's own API does not have."""
        self.counts_streams = True
        """Takes `stream_options`, and counts what it streams."""
        self.requests: list[dict[str, Any]] = []
        self.release = asyncio.Event()
        self.release.set()
        self.status = 200
        self.change: dict[str, Any] = {}
        """Fields of an answer at once."""
        self.stream_change: dict[str, Any] = {}
        """Fields of every piece of a stream."""
        self.streams = True
        self.cuts: Callable[[int], list[int]] = one_by_one
        """Where the pieces of an answer of so many ids or characters end."""
        self.spoils: dict[int, bytes] = {}
        """What is sent in place of the piece with this number; nothing: the connection ends."""
        self.own_end = -1
        """The model's own end of text, at which it stops, too."""
        self.written = 0
        """Tokens of the latest answer, where that is known."""
        self.closed = asyncio.Event()
        """A stream's client went away."""

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/v1/completions", self.complete)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        finally:
            self.release.set()
            await runner.cleanup()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        is_streamed = bool(body.get("stream")) and self.streams
        if not is_streamed:
            await self.release.wait()
        if self.status != 200:
            return web.json_response({"error": "no"}, status=self.status)
        if not self.with_ids and not self.spells and not isinstance(body["prompt"], str):
            return web.json_response({"error": "prompt must be a string"}, status=400)
        if self.strict and not body.keys() <= STANDARD_FIELDS:
            return web.json_response({"error": "Unrecognized request arguments"}, status=400)
        if "stream_options" in body and not self.counts_streams:
            return web.json_response({"error": "Unrecognized request argument: stream_options"}, status=400)
        if is_streamed:
            return await self._stream(request, body, self._pieces(body))
        (choice,) = self._pieces(body, at_once=True)
        usage = {} if self.with_ids else {"usage": {"completion_tokens": self.written}}
        return web.json_response({"choices": [choice | self.change], **usage})

    def _pieces(self, body: dict[str, Any], *, at_once: bool = False) -> list[dict[str, Any]]:
        """The pieces of the answer, of which the last one says why it ended."""
        if self.spells:
            return self._spelled(body, at_once=at_once)
        if not self.with_ids:
            text = self.text[: self.room]
            self.written = len(TOKENIZER.encode(text))
            ends = [len(text)] if at_once else self.cuts(len(text))
            texts = [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]
            pieces: list[dict[str, Any]] = [{"text": text, "finish_reason": None} for text in texts]
            reason = "stop" if len(text) == len(self.text) else "length"
            return [*pieces[:-1], {**pieces[-1], "finish_reason": reason}]
        out: list[int] = []
        stops = {*body["stop_token_ids"], self.own_end}
        for k in range(min(body["max_tokens"], self.room)):
            out.append((body["prompt"][-1] + 1 + k) % VOCAB)
            if out[-1] in stops:
                break
        self.written = len(out)
        ends = [len(out)] if at_once else self.cuts(len(out))
        pieces = [
            {
                "text": "",
                "token_ids": out[a:b],
                "finish_reason": None,
                "logprobs": {"token_logprobs": [-0.5 - token / 1000 for token in out[a:b]]},
            }
            for a, b in zip([0, *ends], ends, strict=False)
        ]
        reason = "stop" if out[-1] in stops else "length"
        return [*pieces[:-1], {**pieces[-1], "finish_reason": reason}]

    def _spelled(self, body: dict[str, Any], *, at_once: bool) -> list[dict[str, Any]]:
        """Ids of the text with their bytes, a turn's end among them; why it ended is a piece of its own."""
        ids = [*TOKENIZER.encode(self.text), STOP]
        written = ids[: min(body["max_tokens"], self.room)]
        self.written = len(written)
        reason = "stop" if len(written) == len(ids) else "length"
        content = [
            {"id": k, "token": text, "bytes": list(text.encode()), "logprob": -0.5 - k / 1000}
            for k in written
            for text in ["" if k == STOP else TOKENIZER.decode([k])]
        ]
        asked = bool(body.get("logprobs"))
        ends = [len(written)] if at_once else self.cuts(len(written))
        pieces = [
            {
                "text": "".join(token["token"] for token in content[a:b]),
                "logprobs": {"content": content[a:b]} if asked else None,
                "finish_reason": None,
            }
            for a, b in zip([0, *ends], ends, strict=False)
        ]
        if at_once:
            return [{**pieces[0], "finish_reason": reason}]
        return [*pieces, {"text": "", "logprobs": None, "finish_reason": reason}]

    async def _stream(
        self, request: web.Request, body: dict[str, Any], pieces: list[dict[str, Any]]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        events: list[dict[str, Any]] = [{"choices": [piece | self.stream_change]} for piece in pieces]
        usage = {"completion_tokens": self.written}
        if self.spells:
            events[-1]["usage"] = usage
        elif (body.get("stream_options") or {}).get("include_usage"):
            events.append({"choices": [], "usage": usage})
        try:
            for k, told in enumerate(events):
                if k:
                    await self.release.wait()
                said = self.spoils.get(k)
                if said == b"" and request.transport is not None:
                    request.transport.close()
                    return response
                await response.write(said or b"data: " + json.dumps(told).encode() + b"\n\n")
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()
        except (ConnectionError, asyncio.CancelledError):
            self.closed.set()
            raise
        return response
