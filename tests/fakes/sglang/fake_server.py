"""A stand-in SGLang server over HTTP: routes, statuses and error texts of the real one, faults on demand.

    async with FakeServer(model) as server: ...        # in this process, `server.url`
    python -m tests.fakes.sglang.fake_server --model-path DIR --port N   # as a child

It holds real weights (safetensors, checksums as the real server on CPU), and kills itself where the real one
dies: an id outside the vocabulary, a tensor of the wrong shape. POST /fake {"hang": true} sets a fault.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.fakes.sglang.fake import FakeRequest, FakeScheduler, Script
from tests.fakes.sglang.fake_weights import FakeWeights, Faults


def _drop_all(runner: web.AppRunner | None) -> None:
    """End every connection without a word."""
    if runner is not None and runner.server is not None:
        for connection in list(runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()


class FakeServer:
    """One server. `script` decides ids instead of the hash; with `policy` the model does. step_s: from token
    to token, 0 = at once. incremental: as with --incremental-streaming-output. seeded: it says that it takes seeds."""

    def __init__(
        self,
        model: Path,
        *,
        port: int = 0,
        capacity: int = 8192,
        script: Script | None = None,
        step_s: float = 0.0,
        policy: bool = False,
        incremental: bool = False,
        seeded: bool = False,
        on_death: Callable[[], None] | None = None,
    ) -> None:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        eos = config.get("eos_token_id")
        self.faults = Faults()
        self.model, self.port, self._step_s = model, port, step_s
        options: dict[str, Any] = {
            "vocab_size": config["vocab_size"],
            "capacity": capacity,
            "context_length": config["max_position_embeddings"],
            "eos_ids": frozenset([] if eos is None else eos if isinstance(eos, list) else [eos]),
        }
        if policy:
            from tests.fakes.sglang.fake_policy import PolicyScheduler

            self.scheduler: FakeScheduler = PolicyScheduler(model, **options)
        else:
            self.scheduler = FakeScheduler(**options, script=script)
        self.requests = 0
        self._answering = 0
        self._in_front: set[str] = set()
        self._resumed = asyncio.Event()
        self._incremental, self._seeded, self._on_death = incremental, seeded, on_death
        self._work = asyncio.Event()
        self._snapshot_at = time.time()
        self._runner: web.AppRunner | None = None
        self._door: socket.socket | None = None
        self._stepper: asyncio.Task[None] | None = None
        self._killing: asyncio.Task[None] | None = None
        self._listening: asyncio.Server | None = None
        self.dead = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> FakeServer:
        weights = FakeWeights(self.model, self.scheduler, self.faults, self._die, self.dead)
        app = web.Application(middlewares=[self._around], client_max_size=1 << 28)
        app.add_routes(
            [
                web.post("/generate", self._generate),
                web.get("/v1/loads", self._loads),
                web.get("/model_info", self._model_info),
                web.get("/server_info", self._server_info),
                web.post("/pause_generation", self._pause),
                web.post("/continue_generation", self._continue),
                web.post("/abort_request", self._abort),
                web.post("/flush_cache", self._flush),
                web.post("/fake", self._fault),
                *weights.routes(),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        self._door = socket.create_server(("127.0.0.1", self.port))
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(self._runner.server, sock=self._door)
        self.port = self._door.getsockname()[1]
        self._stepper = asyncio.create_task(self._run(), name="fake-scheduler")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def kill(self) -> None:
        """Every connection is dropped, in the middle of whatever it was; whoever waits may be cancelled."""
        if self._killing is None:
            self._killing = asyncio.create_task(self._kill(), name="fake-kill")
        await asyncio.shield(self._killing)

    async def _kill(self) -> None:
        runner, self._runner = self._runner, None
        # Nobody is let in from here on. Who is being let in while asyncio's server is closed keeps an open
        # socket that nobody knows of (an assertion of CPython 3.11's Server._attach, reported nowhere).
        if runner is not None and self._door is not None:
            asyncio.get_running_loop().remove_reader(self._door)
        try:
            await self._drop(runner)
        finally:
            if self._listening is not None:
                # Also when all tasks are cancelled: at its own end uvloop waits for it without a limit.
                self._listening.close()
        if runner is not None:
            await runner.cleanup()

    async def _drop(self, runner: web.AppRunner | None) -> None:
        _drop_all(runner)
        self.dead.set()
        if self._stepper is not None:
            self._stepper.cancel()
            await asyncio.wait([self._stepper])
        # Handlers end by themselves, into closed connections: cancelling them is an error inside aiohttp.
        self.scheduler.abort("", everything=True)
        self._resumed.set()
        while self._answering:  # noqa: ASYNC110 - for tests
            await asyncio.sleep(0)
        if runner is not None:
            # Who was being let in before is known two turns of the loop later.
            for _ in range(3):
                await asyncio.sleep(0)
            _drop_all(runner)

    def _die(self) -> None:
        """As the real server: the process ends, the connection of the guilty request is dropped."""
        if self._on_death is not None:
            self._on_death()
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(self.kill()))

    async def _run(self) -> None:
        while True:
            # An idle scheduler looks at its queue all the time; a paused or hung one leaves its snapshot.
            if not self.faults.hang and not self.scheduler.paused:
                self._snapshot_at = time.time()
                self.scheduler.raw_logprobs = self.faults.raw_logprobs
                if not self.scheduler.step():
                    self._work.clear()
                    await self._work.wait()
            await asyncio.sleep(self._step_s if not self.scheduler.paused else 0.001)

    @web.middleware
    async def _around(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self._answering += 1
        try:
            if self.faults.mute and request.path != "/fake":
                return await self._silence()
            return await handler(request)
        except web.HTTPNotFound:
            return web.json_response({"detail": "Not Found"}, status=404)
        except web.HTTPMethodNotAllowed:
            return web.json_response({"detail": "Method Not Allowed"}, status=405)
        finally:
            self._answering -= 1

    async def _silence(self) -> web.Response:
        """No answer until the server is dead."""
        await self.dead.wait()
        return web.Response(status=500)

    async def _fault(self, request: web.Request) -> web.Response:
        for name, value in (await request.json()).items():
            setattr(self.faults, name, value)
        self._work.set()
        return web.json_response({})

    # ---- requests ----

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        if self.faults.error_500 > 0:
            self.faults.error_500 -= 1
            return web.Response(status=500, text="Internal Server Error")
        body = await request.json()
        refusal = self._refusal(body)
        if refusal is not None and body.get("stream"):
            return _events({"error": {"message": refusal}})
        if refusal is not None:
            return web.json_response({"error": {"message": refusal}}, status=400)
        ids, params = body["input_ids"], body.get("sampling_params", {})
        if not all(0 <= token < self.scheduler.vocab_size for token in ids):
            self._die()
            return await self._silence()
        done: asyncio.Future[FakeRequest] = asyncio.get_running_loop().create_future()
        asked = FakeRequest(
            rid=body.get("rid") or f"fake-{self.requests}",
            ids=tuple(ids),
            max_new_tokens=params.get("max_new_tokens", 128),
            temperature=params.get("temperature", 1.0),
            stop_ids=frozenset(params.get("stop_token_ids") or ()),
            ignore_eos=params.get("ignore_eos", False),
            done=lambda ended: None if done.done() else done.set_result(ended),
            is_streamed=bool(body.get("stream")),
        )
        self._in_front.add(asked.rid)
        try:
            # What arrives in a pause waits here, where no abort finds it.
            while self.scheduler.paused and not self.dead.is_set():
                await self._resumed.wait()
        finally:
            self._in_front.discard(asked.rid)
        if self.dead.is_set():
            return web.Response(status=500)
        if asked.is_streamed:
            return await self._stream(request, asked)
        self.scheduler.submit(asked)
        self._work.set()
        ended = await done
        scale = 1.0 if self.scheduler.raw_logprobs else asked.temperature or 1.0
        num_top = body.get("top_logprobs_num", 0)
        return web.json_response(_answer(ended, self.scheduler.label, num_top, scale))

    async def _stream(self, request: web.Request, asked: FakeRequest) -> web.StreamResponse:
        """An event per token, with all tokens so far or with the new one."""
        news: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        asked.news = lambda: news.put_nowait(_so_far(asked, self.scheduler.label, self._incremental))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.scheduler.submit(asked)
        self._work.set()
        sent = 0
        try:
            while self.faults.end_stream is None or sent < self.faults.end_stream:
                event = await news.get()
                await self._send(response, b"data: " + json.dumps(event).encode() + b"\n\n")
                sent += 1
                if event["meta_info"]["finish_reason"] is not None:
                    await self._send(response, b"data: [DONE]\n\n")
                    await response.write_eof()
                    return response
        except ConnectionError:  # the client has gone
            self.scheduler.abort(asked.rid)
            return response
        if request.transport is not None:
            request.transport.close()
        return response

    async def _send(self, response: web.StreamResponse, data: bytes) -> None:
        for piece in [data[k : k + 1] for k in range(len(data))] if self.faults.in_bytes else [data]:
            await response.write(piece)

    def _refusal(self, body: dict[str, Any]) -> str | None:
        ids = body.get("input_ids")
        if not isinstance(ids, list):
            return "Either text, input_ids or input_embeds should be provided."
        if len(ids) > self.scheduler.context_length:
            length = self.scheduler.context_length
            return f"The input ({len(ids)} tokens) is longer than the model's context length ({length} tokens)."
        total = len(ids) + body.get("sampling_params", {}).get("max_new_tokens", 128)
        if total > self.scheduler.context_length:
            return (
                "Requested token count exceeds the model's maximum context length of"
                f" {self.scheduler.context_length} tokens. You requested a total of {total} tokens"
            )
        if len(ids) > self.scheduler.max_input_tokens:
            return (
                f"Input length ({len(ids)} tokens) exceeds the maximum allowed length"
                f" ({self.scheduler.max_input_tokens} tokens). Use a shorter input or enable"
                " --allow-auto-truncate."
            )
        rid = body.get("rid")
        if rid and (rid in self._in_front or self.scheduler.live(rid) is not None):
            return f"Duplicate request ID detected: {body['rid']}"
        return None

    async def _abort(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body.get("rid") or body.get("abort_all"):
            self.scheduler.abort(body.get("rid", ""), everything=bool(body.get("abort_all")))
        return web.Response()

    async def _flush(self, request: web.Request) -> web.Response:
        if self.scheduler.running or (self.scheduler.waiting and not self.scheduler.paused):
            return web.Response(status=400, text="Flush cache failed.\n")
        self.scheduler.kv.flush()
        return web.Response(text="Cache flushed.\n")

    async def _pause(self, request: web.Request) -> web.Response:
        self._resumed.clear()
        mode = (await request.json()).get("mode", "abort")
        if mode == "retract":
            self.scheduler.pause()
        elif mode == "abort":
            self.scheduler.abort("", everything=True)
            self.scheduler.paused = True
        else:
            self.scheduler.paused = True
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, request: web.Request) -> web.Response:
        self.scheduler.paused = False
        self._resumed.set()
        self._work.set()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    # ---- what it says of itself ----

    async def _loads(self, request: web.Request) -> web.Response:
        kv = self.scheduler.kv
        if self.scheduler.idle and not self.faults.hang and not self.scheduler.paused:
            self._snapshot_at = time.time()
        rank = {
            "timestamp": self._snapshot_at,
            "dp_rank": 0,
            "num_running_reqs": len(self.scheduler.running),
            "num_waiting_reqs": len(self.scheduler.waiting),
            "num_used_tokens": kv.used,
            "max_total_num_tokens": kv.capacity,
            "token_usage": round(kv.used / kv.capacity, 2),
        }
        return web.json_response({"timestamp": "", "version": "0.5.23", "loads": [rank]})

    async def _model_info(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": str(self.model), "weight_version": self.scheduler.label})

    async def _server_info(self, request: web.Request) -> web.Response:
        info = {
            "tp_size": 1,
            "dp_size": 1,
            "skip_tokenizer_init": False,
            "preferred_sampling_params": None,
            "enable_deterministic_inference": self._seeded,
            "max_req_input_len": self.scheduler.max_input_tokens,
            "version": "0.5.23",
        }
        return web.json_response(info)


def _answer(ended: FakeRequest, label: str, num_top: int, scale: float) -> dict[str, Any]:
    spans: list[dict[str, Any]] = []
    for k, version in enumerate(ended.labels):
        if not spans or spans[-1]["version"] != version:
            spans.append({"version": version, "start": k, "end": k})
        spans[-1]["end"] = k + 1
    pairs = list(zip(ended.logprobs, ended.out, strict=True))
    scored = [[lp, token, None] for lp, token in pairs]
    meta: dict[str, Any] = {
        "id": ended.rid,
        "finish_reason": ended.finish,
        "weight_version": ended.labels[-1] if ended.labels else label,
        "weight_versions": spans or [{"version": label, "start": 0, "end": 0}],
        "input_token_logprobs": [],
        "output_token_logprobs": scored,
        "output_token_logprobs_length": len(scored),
        "completion_tokens": len(ended.out),
    }
    if not ended.in_queue:
        meta |= {
            "prompt_tokens": len(ended.ids),
            "cached_tokens": ended.cached_tokens,
            "num_retractions": ended.retractions,
        }
    if num_top:
        meta["output_top_logprobs"] = [
            [[lp, token, None], [lp - 0.5 / scale, token + 1, None]][:num_top] for lp, token in pairs
        ]
    return {"text": "", "output_ids": ended.out, "meta_info": meta}


def _so_far(asked: FakeRequest, label: str, incremental: bool) -> dict[str, Any]:
    """What a stream tells now: before the end without the versions."""
    event = _answer(asked, label, 0, 1.0)
    meta = event["meta_info"]
    event["output_ids"] = list(asked.out)
    if asked.finish is None:
        del meta["weight_versions"]
    if incremental:
        event["output_ids"] = event["output_ids"][asked.shown :]
        meta["output_token_logprobs"] = meta["output_token_logprobs"][asked.shown :]
    asked.shown = len(asked.out)
    return event


def _events(*events: dict[str, Any]) -> web.Response:
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return web.Response(text=text + "data: [DONE]\n\n", content_type="text/event-stream")


async def _serve(args: argparse.Namespace) -> None:
    async with FakeServer(
        args.model_path,
        port=args.port,
        capacity=args.max_total_tokens,
        step_s=args.step_s,
        policy=args.policy,
        on_death=lambda: os._exit(131),
    ) as server:
        print(f"fake server ready on {server.url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-total-tokens", type=int, default=8192)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--policy", action="store_true", help="tokens of the model, not of a hash")
    known, _ = parser.parse_known_args()
    asyncio.run(_serve(known))
