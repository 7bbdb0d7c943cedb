"""The HTTP application: routes, and what holds for all of them.

    request ──> guard (token, Host) ──> handler ──> Faces ──> Desk ──> ServedConversation
                 │ ServeRefusal -> OpenAI's error              ▲ client gone: stopped, down to a tool's child
                 └────────────────────────── parts, as JSON or as a stream ──┘

Who waits: a request for its conversation; a stream for its client, `write_timeout_s` at most a time.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel

from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.serve.asked import (
    MODELS,
    AskedChat,
    AskedCompletion,
    AskedFeedback,
    AskedText,
    AskedTokens,
    Sampled,
)
from rocstar.engine.serve.beside import Beside
from rocstar.engine.serve.bounds import bounds_of
from rocstar.engine.serve.checked import check_tokens
from rocstar.engine.serve.conversation import ConversationOrder, ServedConversation
from rocstar.engine.serve.counts import CONTENT_TYPE, Counts
from rocstar.engine.serve.desk import Desk, DeskLimits
from rocstar.engine.serve.faces import Faces, prompts_of
from rocstar.engine.serve.guard import ServeGuard
from rocstar.engine.serve.kept import KeptConversations, LookupsFull
from rocstar.engine.serve.openapi import HTML, JSON, document
from rocstar.engine.serve.page import HEADERS, page
from rocstar.engine.serve.refusals import ServeRefusal
from rocstar.engine.serve.said import PING, ChatWords, CompletionWords, as_json, event, plain_id
from rocstar.sandbox.loopback import hung_up, send_continue
from rocstar.sandbox.loopback.access import Network
from rocstar.sandbox.loopback.door import Door, DoorFull
from rocstar.sandbox.loopback.printable import printable_line
from rocstar.sandbox.loopback.tokens import Owners

STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would hold parts back
}
SMALL_BYTES = 16 << 10
"""Less than what may wait in a connection before its writer does."""
REMEMBERED = 1024
"""Requests whose repetition with one seed is noticed."""

OWNER = ""
"""Of a connection: all who may ask share them."""
LOGGED_OWNER = web.RequestKey("owner", str)
"""Whose token a request has, for the access log."""
MAX_NOTE_CHARS = 1000
MAX_NOTED_FIELDS, MAX_FIELD_CHARS = 8, 40
JOINED_APART_BYTES = 1 << 20
MAX_HELD_BODIES = 16
"""Bodies of the largest size that arrive or are being read; of smaller ones as many as are of that size."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What a server is told at its start.

    Attributes:
        owners: whose tokens are asked for; without any, clients of loopback need none.
        trusted_proxies: peers whose X-Forwarded-For the access log believes.
        max_context: tokens of a prompt and its answer together; None where the engine does not say.
        desk: bounds of what goes on.
        ping_s: a stream that has nothing to tell says so that often.
        write_timeout_s: how long a client may take nothing of its stream.
        body_timeout_s: the time a request's body has to arrive.
        max_body_bytes: of a request.
        max_connections: seven eighths of them of clients that have shown the token.
        isolation: what confines the tools, as answers tell it.
    """

    owners: Owners = field(default_factory=Owners)
    trusted_proxies: tuple[Network, ...] = ()
    max_context: int | None = None
    desk: DeskLimits = field(default_factory=DeskLimits)
    ping_s: float = 10.0
    write_timeout_s: float = 60.0
    body_timeout_s: float = 30.0
    max_body_bytes: int = 16 << 20
    max_connections: int = 4096
    isolation: str = ""


class Endpoint:
    """The faces of one agent over HTTP. `app` is what a server runs."""

    def __init__(
        self,
        agent: Agent,
        tasks: asyncio.TaskGroup,
        options: ServeOptions,
        *,
        kept: KeptConversations | None,
        note: Callable[[str], None],
    ) -> None:
        """
        Args:
            agent: whose engine is open.
            tasks: the server's: conversations are tasks in it.
            options: of the server.
            kept: takes the records; None = nothing is kept.
            note: shows the operator a line.
        """
        self.agent, self.options, self._kept = agent, options, kept
        self._note_line = note
        self.counts = Counts(self._gauges)
        self.desk = Desk(agent, tasks, kept=kept, limits=options.desk, counts=self.counts, note=note)
        self._faces = Faces(agent, options.max_context, self.desk.name)
        self._beside = Beside(
            bounds_of(
                agent.chat.tokenizer, max_tokens=options.max_context, max_choices=options.desk.max_choices
            )
        )
        self.door = Door.for_one(options.max_connections)
        self._held_bytes = 0
        """Of bodies that arrive or are being read."""
        self._guard = ServeGuard(options.owners)
        self._told_fields: set[str] = set()
        self._seeds: OrderedDict[tuple[str, str, int], str] = OrderedDict()
        self._told_clients: set[str] = set()
        self._started = int(time.time())
        self.app = self._build()

    def _note(self, line: str) -> None:
        """Show the operator a line, which may quote a client."""
        self._note_line(printable_line(line, MAX_NOTE_CHARS))

    def close(self) -> None:
        """End the processes that read bodies. No request is answered any more."""
        self._beside.close()

    def _build(self) -> web.Application:
        app = web.Application(
            middlewares=[self._answered],
            client_max_size=self.options.max_body_bytes,
            handler_args={"handler_cancellation": True},
        )
        app.router.add_post("/v1/chat/completions", self.chat, expect_handler=self._expected)
        app.router.add_post("/v1/completions", self.complete, expect_handler=self._expected)
        app.router.add_post("/v1/feedback", self.feedback, expect_handler=self._expected)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/models/{model}", self.model)
        for prefix in ("", "/v1"):
            app.router.add_post(f"{prefix}/tokenize", self.tokenize, expect_handler=self._expected)
            app.router.add_post(f"{prefix}/detokenize", self.detokenize, expect_handler=self._expected)
            app.router.add_get(f"{prefix}/tokenizer_info", self.tokenizer_info)
        for path in ("/health", "/readyz"):
            app.router.add_get(path, self.health)
        app.router.add_get("/healthz", self.alive)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/openapi.json", self.description)
        app.router.add_get("/", self.front_page)
        app.router.add_get("/docs", self.docs)
        return app

    async def _expected(self, request: web.Request) -> web.StreamResponse | None:
        """What answers an `Expect`: a refusal at once, without the body, or `100 Continue`."""
        try:
            self._guard.check(request.path, request.headers, request.host)
            self._check_head(request)
            await send_continue(request)
        except ServeRefusal as refusal:
            return refused(refusal)
        except web.HTTPException as error:
            return refused(_of_router(error))
        return None

    @web.middleware
    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = request.protocol
        try:
            owner = self._guard.check(request.path, request.headers, request.host)
            request[LOGGED_OWNER] = owner or ""
            self.door.begins(connection, None if owner is None else OWNER)
            response = await handler(request)
        except ServeRefusal as refusal:
            response = refused(refusal)
        except DoorFull as full:
            response = refused(ServeRefusal(str(full), status=429, code="too_many_connections"))
        except web.HTTPException as error:
            response = await self._without_slash(request, error) or refused(_of_router(error))
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        except asyncio.CancelledError:
            self.counts.disconnects += 1
            raise
        except ConnectionError:
            self.counts.disconnects += 1
            return hung_up(request)
        finally:
            self.door.ends(connection)
        resource = request.match_info.route.resource
        self.counts.answers[resource.canonical if resource else "unknown", str(response.status)] += 1
        return response

    async def _without_slash(
        self, request: web.Request, error: web.HTTPException
    ) -> web.StreamResponse | None:
        """A redirection, where a path is known without the slash at its end; None where it is not."""
        path = request.rel_url.raw_path
        if error.status != 404 or len(path) < 2 or not path.endswith("/"):
            return None
        plain = request.rel_url.with_path(path.rstrip("/"), encoded=True)
        if (await self.app.router.resolve(request.clone(rel_url=plain))).http_exception is not None:
            return None
        response = refused(
            ServeRefusal(f"ask for {plain.raw_path}, without a slash at its end", status=308, code="moved")
        )
        response.headers["Location"] = f"../{plain.raw_name}"  # below whatever path a proxy puts in front
        return response

    # ---- conversations ----

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """/v1/chat/completions: the agent, or the model with the client's tools."""
        asked = await self._read(request, AskedChat)
        self._notice(request, asked)
        await self.desk.until_disk_follows()
        self.desk.check_room(asked.num_choices)
        order = await self._beside.run(self._faces.chat, asked)
        self.desk.check_room(asked.num_choices)  # others may have begun meanwhile
        self._notice_seed(request, asked, order)
        conversation = self.desk.begin(self._faces.named(order))
        words = ChatWords(
            conversation, asked.model, self.options.isolation, with_token_ids=asked.return_token_ids
        )
        try:
            if asked.stream:
                return await self._stream(request, conversation, words, with_usage=asked.includes_usage)
            parts = await conversation.all_parts()
        finally:
            self.desk.stop(conversation)
        if (refusal := conversation.refusal()) is not None:
            raise refusal
        return _json(words.whole(parts))

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """/v1/completions: the model alone."""
        asked = await self._read(request, AskedCompletion)
        self._notice(request, asked)
        await self.desk.until_disk_follows()
        num_choices = asked.num_choices * len(prompts_of(asked))
        self.desk.check_room(num_choices)
        orders = await self._beside.run(self._faces.completions, asked)
        self.desk.check_room(num_choices)  # others may have begun meanwhile
        conversations = [self.desk.begin(self._faces.named(order)) for order in orders]
        words = CompletionWords(
            conversations, asked.model, echo=bool(asked.echo), with_logprobs=asked.logprobs is not None
        )
        try:
            if asked.stream:
                return await self._stream(request, conversations[0], words, with_usage=asked.includes_usage)
            parts = [await conversation.all_parts() for conversation in conversations]
        finally:
            for conversation in conversations:
                self.desk.stop(conversation)
        for conversation in conversations:
            if (refusal := conversation.refusal()) is not None:
                raise refusal
        return _json(words.whole(parts))

    async def _stream(
        self,
        request: web.Request,
        conversation: ServedConversation,
        words: ChatWords | CompletionWords,
        *,
        with_usage: bool,
    ) -> web.StreamResponse:
        """Parts as they come. What fails before the first is an error with its own status."""
        began = asyncio.get_running_loop().time()
        parts = await conversation.next(self.options.ping_s)
        if (refusal := conversation.refusal()) is not None and not parts:
            raise refusal
        self.counts.first_part(asyncio.get_running_loop().time() - began)
        response = web.StreamResponse(headers=STREAM_HEADERS)
        await response.prepare(request)
        opening = words.first()
        while parts is not None:
            await self._write(request, response, opening + (words.chunks(parts) or PING))
            parts, opening = await conversation.next(self.options.ping_s), b""
        if (refusal := conversation.refusal()) is not None:
            await self._write(request, response, opening + event(refusal.body()))
        else:
            await self._write(request, response, opening + words.last(with_usage=with_usage))
        await response.write_eof()
        return response

    async def _write(self, request: web.Request, response: web.StreamResponse, data: bytes) -> None:
        """ConnectionError if the client takes nothing for too long."""
        transport = request.transport
        if transport is not None and not transport.get_write_buffer_size() and len(data) <= SMALL_BYTES:
            await response.write(data)  # a client that took all there was: nothing here can wait
            return
        try:
            async with asyncio.timeout(self.options.write_timeout_s):
                await response.write(data)
        except TimeoutError:
            raise ConnectionResetError("the client takes nothing of its stream") from None

    # ---- what else is asked ----

    async def feedback(self, request: web.Request) -> web.Response:
        """/v1/feedback: a person's verdict on one choice."""
        asked = await self._read(request, AskedFeedback)
        if self._kept is None:
            raise ServeRefusal(
                "nothing is kept here: start the server with --out", status=501, code="not_kept"
            )
        try:
            is_kept = await self._kept.feedback(plain_id(asked.id), asked.index, asked.thumb, asked.comment)
        except LookupsFull as full:
            raise ServeRefusal(f"{full}; ask again later", status=429, code="queue_full") from None
        if not is_kept:
            raise ServeRefusal(
                f"there is no choice {asked.index} of {asked.id[:80]!r}; give `id` and `index` of an answer",
                status=404,
                param="id",
                code="not_found",
            )
        self.counts.thumbs += 1
        return _json({"object": "feedback", "id": asked.id, "index": asked.index, "thumb": asked.thumb})

    async def models(self, request: web.Request) -> web.Response:
        """/v1/models."""
        return _json({"object": "list", "data": [self._model(name) for name in MODELS]})

    async def model(self, request: web.Request) -> web.Response:
        """/v1/models/NAME."""
        name = request.match_info["model"]
        if name not in MODELS:
            there = " and ".join(MODELS)
            message = f"model {name[:80]!r} is not served; there are {there}"
            raise ServeRefusal(message, status=404, param="model", code="model_not_found")
        return _json(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        told = {"id": name, "object": "model", "created": self._started, "owned_by": "rocstar"}
        return told | {"max_model_len": self.options.max_context}

    async def tokenize(self, request: web.Request) -> web.Response:
        """/tokenize: ids of a text, or of messages."""
        asked = await self._read(request, AskedTokens)
        check_tokens(asked)
        if asked.messages:
            ids = await self._beside.run(self._faces.message_ids, asked.messages)
        else:
            ids = await self._beside.run(self._faces.text_ids, asked.prompt or "")
        return _json({"tokens": ids, "count": len(ids), "max_model_len": self.options.max_context})

    async def detokenize(self, request: web.Request) -> web.Response:
        """/detokenize: the text of ids, special tokens shown; lm-eval asks for it, too."""
        asked = await self._read(request, AskedText)
        return _json({"prompt": await self._beside.run(self.agent.chat.decode, asked.tokens)})

    async def tokenizer_info(self, request: web.Request) -> web.Response:
        """/tokenizer_info, which lm-eval asks for."""
        chat = self.agent.chat
        names = {
            name: getattr(chat.tokenizer, name, None) for name in ("bos_token", "eos_token", "pad_token")
        }
        return _json({**names, "chat_template": chat.template})

    async def health(self, request: web.Request) -> web.Response:
        """/health, /readyz: 503 while the server shuts down."""
        if self.desk.is_closing:
            raise ServeRefusal("the server is shutting down", status=503, code="closing")
        return _json({"status": "ok"})

    async def alive(self, request: web.Request) -> web.Response:
        """/healthz: the process answers."""
        return _json({"status": "ok"})

    async def metrics(self, request: web.Request) -> web.Response:
        """/metrics, for Prometheus."""
        return web.Response(body=self.counts.render(), headers={"Content-Type": CONTENT_TYPE})

    async def description(self, request: web.Request) -> web.Response:
        """/openapi.json."""
        return _json(document(needs_token=bool(self.options.owners)))

    async def front_page(self, request: web.Request) -> web.Response:
        """/: the page for people."""
        text = page(request.host, needs_token=bool(self.options.owners))
        return web.Response(text=text, content_type=HTML, headers=HEADERS)

    async def docs(self, request: web.Request) -> web.Response:
        """/docs: where other servers have their page."""
        return web.Response(status=302, headers={"Location": "/"})

    def _gauges(self) -> dict[str, float]:
        load = self.agent.inference.load()
        return {
            "choices_in_flight": self.desk.in_flight,
            "kv_tokens_total": load.total,
            "kv_tokens_used": load.used,
            "engine_running": load.running,
            "engine_waiting": load.waiting,
        }

    # ---- of every request ----

    async def _read(self, request: web.Request, model: type[M]) -> M:
        """The body as the model. ServeRefusal names what is wrong."""
        self._check_head(request)
        most = self.options.max_body_bytes
        size = most if request.content_length is None else request.content_length
        if self._held_bytes + size > MAX_HELD_BODIES * most:
            raise ServeRefusal(
                f"bodies of {self._held_bytes} bytes arrive or are being read; ask again later",
                status=429,
                code="queue_full",
            )
        self._held_bytes += size
        try:
            return await self._beside.read(model, await self._body(request))
        finally:
            self._held_bytes -= size

    def _check_head(self, request: web.Request) -> None:
        """ServeRefusal for a body that the head says is too large, or is encoded."""
        if (request.content_length or 0) > self.options.max_body_bytes:
            raise _of_router(web.HTTPRequestEntityTooLarge(self.options.max_body_bytes))
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":
            raise ServeRefusal(
                f"Content-Encoding is {encoding[:60]!a}; send the body as it is",
                status=415,
                param="Content-Encoding",
                code="encoded_body",
            )

    async def _body(self, request: web.Request) -> bytes:
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.options.body_timeout_s):
                while chunk := await request.content.readany():
                    size += len(chunk)
                    if size > self.options.max_body_bytes:
                        raise _of_router(web.HTTPRequestEntityTooLarge(self.options.max_body_bytes))
                    chunks.append(chunk)
                    await asyncio.sleep(0)  # what has come already does not wait, and others have their turn
        except TimeoutError:
            raise ServeRefusal("the body did not arrive in time", status=408, code="slow_body") from None
        if size < JOINED_APART_BYTES:
            return b"".join(chunks)
        return await asyncio.to_thread(b"".join, chunks)  # which lets go of the interpreter's lock

    def _notice(self, request: web.Request, asked: Sampled) -> None:
        """Tell the operator once of each field that nobody reads."""
        new = [name for name in asked.unknown() if name[:MAX_FIELD_CHARS] not in self._told_fields]
        if new and len(self._told_fields) < REMEMBERED:
            self._told_fields.update(name[:MAX_FIELD_CHARS] for name in new)
            names = ", ".join(printable_line(name, MAX_FIELD_CHARS) for name in new[:MAX_NOTED_FIELDS])
            more = f" and {len(new) - MAX_NOTED_FIELDS} more" if len(new) > MAX_NOTED_FIELDS else ""
            self._note(f"{_client(request)} sends {names}{more}, which nothing here reads")

    def _notice_seed(self, request: web.Request, asked: Sampled, order: ConversationOrder) -> None:
        """Tell the operator once of a client that asks the same with the same seed: it gets the same."""
        client = _client(request)
        if asked.seed is None or order.temperature == 0 or client in self._told_clients:
            return
        asking = client, order.task.id, asked.seed
        if asking in self._seeds:
            if len(self._told_clients) < REMEMBERED:
                self._told_clients.add(client)
            self._note(
                f"{client} asks the same again with seed {asked.seed}, and gets the same again; for other "
                "samples leave the seed out, or ask for several choices with n"
            )
        self._seeds[asking] = ""
        while len(self._seeds) > REMEMBERED:
            self._seeds.popitem(last=False)


def refused(refusal: ServeRefusal) -> web.Response:
    """A refusal as an answer."""
    response = web.Response(
        body=as_json(refusal.body()), status=refusal.status, headers=refusal.headers(), content_type=JSON
    )
    if refusal.status in (408, 413, 415):
        response.force_close()  # what is left of the body is not read
    return response


def owner_logged(request: web.BaseRequest) -> str:
    """Whose token a request has; "" if unknown."""
    owner: str = request.get(LOGGED_OWNER, "")
    return owner


def _of_router(error: web.HTTPException) -> ServeRefusal:
    if error.status == 413:
        return ServeRefusal("the body is too large", status=413, code="body_too_large")
    code = "bad_expectation" if error.status == 417 else "no_such_path"
    return ServeRefusal(f"{error.reason}: {error.status}", status=error.status, code=code)


def _json(value: Any) -> web.Response:
    return web.Response(body=as_json(value), content_type=JSON)


def _client(request: web.Request) -> str:
    return printable_line(request.headers.get("User-Agent", "a client without a name"), 80)
