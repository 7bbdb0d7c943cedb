"""The HTTP application: routes, authentication, bodies and errors.

    request ──> guard (token, Host) ──> RequestBuilder ──> ConversationManager ──> ServedConversation
                 │ RequestError -> OpenAI's error        ▲ client disconnected: stopped, with a tool's child
                 └────────────────────────── parts, as JSON or as a stream ──┘

A request waits for its conversation; a stream waits for its client, `write_timeout_s` at most per write.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from aiohttp import web

from rocstar.engine.gateway.dialects.events import PING, encode_json, failed
from rocstar.engine.gateway.dialects.fields import Fields
from rocstar.engine.gateway.endpoint import (
    COUNT_TOKENS,
    DIALECTS,
    SESSION,
    STREAM_HEADERS,
    check_body_head,
    error_response,
    read_body,
    route_of,
    send_sample,
    too_large,
    write_within,
)
from rocstar.engine.gateway.graph import MessageGraph
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.serve.conversation import ConversationOrder, ServedConversation
from rocstar.engine.serve.conversation_manager import ConversationManager, ServeMetrics, ServeOptions
from rocstar.engine.serve.conversation_store import ConversationStore
from rocstar.engine.serve.openapi import build_document
from rocstar.engine.serve.request_builder import RequestBuilder, check_model
from rocstar.engine.serve.request_reader import R, RequestReader, limits_for_tokenizer
from rocstar.engine.serve.requests import (
    KNOWN,
    MODELS,
    GenerationRequest,
    read_chat,
    read_completion,
    read_detokenize,
    read_feedback,
    read_tokenize,
)
from rocstar.engine.serve.response_stream import ChatResponse, CompletionResponse
from rocstar.engine.serve.served_sessions import ServedSessions, training_trace
from rocstar.sandbox.http.connections import ConnectionLimiter, ConnectionsExhausted
from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.http.guard import authenticate
from rocstar.sandbox.http.metrics import CONTENT_TYPE
from rocstar.sandbox.http.printable import printable_line
from rocstar.sandbox.http.responses import JSON, client_gone_response, json_response, send_continue
from rocstar.sandbox.http.routes import UNKNOWN_ROUTE, HttpRequest, HttpRoute, Routes

REMEMBERED = 1024
"""Requests whose repetition with one seed is noticed."""

OWNER = ""
"""The owner of all authenticated connections."""
MAX_NOTE_CHARS = 1000
MAX_NOTED_FIELDS, MAX_FIELD_CHARS = 8, 40
MAX_HELD_BODIES = 16
"""Bodies of the largest size that arrive or are being read; of smaller ones as many as are of that size."""

OWN_PATHS = frozenset(("/v1/chat/completions", "/v1/completions"))
"""Paths of dialects whose requests outside a session are conversations of the agent."""
OPEN_PATHS = frozenset(("/health", "/healthz", "/readyz", "/openapi.json"))
"""Paths without authentication: they return nothing about conversations."""


class Endpoint:
    """The HTTP API of one agent. `answer` is the handler of its server."""

    def __init__(
        self,
        agent: Agent,
        tasks: asyncio.TaskGroup,
        options: ServeOptions,
        *,
        store: ConversationStore | None,
        note: Callable[[str], None],
    ) -> None:
        """
        Args:
            agent: whose engine is open.
            tasks: the server's: conversations are tasks in it.
            options: of the server.
            store: stores the records; None to store none.
            note: shows the operator a line.
        """
        self.agent, self.options, self._store = agent, options, store
        self._note_line = note
        self.metrics = ServeMetrics(self._gauges)
        self.conversations = ConversationManager(
            agent, tasks, store=store, options=options, metrics=self.metrics, note=note
        )
        self._tasks = tasks
        self.sessions = ServedSessions(agent, self.conversations, tasks)
        self._builder = RequestBuilder(agent, options.max_context)
        self._reader = RequestReader(
            limits_for_tokenizer(agent.chat.tokenizer, max_tokens=options.max_context, max_choices=options.max_choices)
        )
        self.connections = ConnectionLimiter.shared(options.max_connections)
        self._held_bytes = 0
        """The size of bodies that are arriving or being parsed."""
        self._noted_fields: set[str] = set()
        self._seeds: dict[tuple[str, str, int], None] = {}
        self._noted_clients: set[str] = set()
        self._started = int(time.time())
        self.routes = Routes(self._routes())
        self.url = ""
        """The first address, without /v1, once the server listens; unix:PATH if it has no TCP address."""

    def _note(self, line: str) -> None:
        """Show the operator a line, which may quote a client."""
        self._note_line(printable_line(line, MAX_NOTE_CHARS))

    def close(self) -> None:
        """End the processes that read bodies. No request is answered any more."""
        self._reader.close()

    def _routes(self) -> Iterator[HttpRoute]:
        yield HttpRoute("POST", "/v1/chat/completions", self.chat)
        yield HttpRoute("POST", "/v1/completions", self.complete)
        for path in (*DIALECTS, *(SESSION + path for path in DIALECTS)):
            if path not in OWN_PATHS:
                yield HttpRoute("POST", path, self.foreign)
        yield HttpRoute("GET", f"{SESSION}/v1/models", self.models)
        yield HttpRoute("GET", f"{SESSION}/trace", self.trace)
        yield HttpRoute("DELETE", SESSION, self.close_session)
        yield HttpRoute("POST", "/v1/feedback", self.feedback)
        yield HttpRoute("GET", "/v1/models", self.models)
        yield HttpRoute("GET", "/v1/models/{model}", self.model)
        for prefix in ("", "/v1"):
            yield HttpRoute("POST", f"{prefix}/tokenize", self.tokenize)
            yield HttpRoute("POST", f"{prefix}/detokenize", self.detokenize)
            yield HttpRoute("GET", f"{prefix}/tokenizer_info", self.tokenizer_info)
        for path in ("/health", "/readyz"):
            yield HttpRoute("GET", path, self.health)
        yield HttpRoute("GET", "/healthz", self.alive)
        yield HttpRoute("GET", "/metrics", self.show_metrics)
        yield HttpRoute("GET", "/openapi.json", self.description)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request, also one that fails or whose client has gone."""
        assert isinstance(request, HttpRequest)
        connection, found = request.protocol, await self.routes.find(request)
        request.place, request.names = found.place, found.names
        try:
            is_open, owners = request.path in OPEN_PATHS, self.options.owners
            owner = None if is_open else authenticate(owners, request.headers, request.host)
            request.owner = owner or ""
            self.connections.begin_request(connection, None if owner is None else OWNER)
            if request.headers.get("Expect") and found.place != UNKNOWN_ROUTE:
                check_body_head(request, self.options.max_body_bytes)
                await send_continue(request)
            response = await found.handler(request)
        except RequestError as refusal:
            response = error_response(request, refusal)
        except ConnectionsExhausted as exhausted:
            full = RequestError(str(exhausted), status=429, kind="too_many_connections")
            response = error_response(request, full)
        except web.HTTPException as error:
            response = error_response(request, _router_error(error))
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        except asyncio.CancelledError:
            self.metrics.disconnects += 1
            raise
        except ConnectionError:
            self.metrics.disconnects += 1
            return client_gone_response(request)
        finally:
            self.connections.end_request(connection)
        self.metrics.answers[found.place, str(response.status)] += 1
        return response

    # ---- conversations ----

    async def chat(self, request: HttpRequest) -> web.StreamResponse:
        """/v1/chat/completions: the agent, or the model with the client's tools."""
        body = await self._read(request, read_chat)
        (conversation,) = await self._begin(request, body, lambda: [self._builder.chat(body)], body.num_choices)
        self._note_repeated_seed(request, body, conversation.order)
        response = ChatResponse(
            conversation,
            body.model,
            self.options.isolation,
            with_token_ids=body.with_token_ids,
            with_logprobs=body.with_logprobs,
        )
        return await self._respond(request, body, [conversation], response)

    async def complete(self, request: HttpRequest) -> web.StreamResponse:
        """/v1/completions: the model alone."""
        body = await self._read(request, read_completion)
        num_choices = body.num_choices * len(body.prompts)
        conversations = await self._begin(request, body, lambda: self._builder.completions(body), num_choices)
        response = CompletionResponse(
            conversations,
            body.model,
            echo=body.echo,
            with_logprobs=body.with_logprobs,
            with_token_ids=body.with_token_ids,
        )
        return await self._respond(request, body, conversations, response)

    async def foreign(self, request: HttpRequest) -> web.StreamResponse:
        """Requests of a session, and of other dialects: the model alone, with the client's tools."""
        route, sessions = route_of(request), self.sessions
        dialect, key = DIALECTS[route], request.names.get("key")
        with self._holding(request):
            body = await self._read_body(request)
            asked = await self._reader.read(dialect.read, body, sessions.known(request.owner, key, route))
            digest = hashlib.blake2b(route.encode() + b"\0" + body, digest_size=16).digest()
        if route == COUNT_TOKENS:
            prompt = await self._reader.run(MessageGraph(self.agent.chat).prompt, asked)
            return json_response({"input_tokens": len(prompt.ids)})
        self._note_unknown_fields(request, asked.ignored)
        await self.conversations.wait_for_disk()
        served = sessions.open_single(asked) if key is None else sessions.find(request.owner, key, opens=True)
        times = {"ping_s": self.options.ping_s, "write_timeout_s": self.options.write_timeout_s}
        try:
            response = await send_sample(request, dialect, asked, sessions.sample(served, asked, digest), **times)
            served.session.delivered(digest)
        finally:
            if key is None:
                self._tasks.create_task(sessions.close(served))
        return response

    async def trace(self, request: HttpRequest) -> web.Response:
        """/sessions/KEY/trace: the samples of the session, for a trainer."""
        served = self.sessions.find(request.owner, request.names["key"])
        return json_response(training_trace(served.session))

    async def close_session(self, request: HttpRequest) -> web.Response:
        """DELETE /sessions/KEY: keep the trajectory, and return its id."""
        served = self.sessions.find(request.owner, request.names["key"])
        await self.sessions.close(served)
        return json_response({"object": "session", "id": served.name, "closed": True})

    async def drain(self, timeout_s: float) -> bool:
        """Reject new requests, wait for the active ones, and close the sessions. True if all of them finished."""
        timer = asyncio.get_running_loop().call_later(timeout_s, self.sessions.stop)
        try:
            return await self.conversations.drain(timeout_s)
        finally:
            timer.cancel()
            await self.sessions.close_all()

    async def _begin(
        self,
        request: HttpRequest,
        body: GenerationRequest,
        build: Callable[[], Sequence[ConversationOrder]],
        num_choices: int,
    ) -> list[ServedConversation]:
        """Build the orders in a thread and start them. Raises RequestError."""
        self._note_unknown_fields(request, body.ignored)
        await self.conversations.wait_for_disk()
        self.conversations.check_room(num_choices)
        orders = await self._reader.run(build)
        self.conversations.check_room(num_choices)  # others may have begun meanwhile
        return [self.conversations.begin(order) for order in orders]

    async def _respond(
        self,
        request: HttpRequest,
        body: GenerationRequest,
        conversations: Sequence[ServedConversation],
        response: ChatResponse | CompletionResponse,
    ) -> web.StreamResponse:
        """Send the response, whole or as a stream, and end the conversations with it."""
        try:
            if body.is_streamed:
                return await self._stream(request, conversations[0], response, with_usage=body.with_usage)
            parts = [await conversation.all_parts() for conversation in conversations]
        finally:
            for conversation in conversations:
                self.conversations.stop(conversation)
        for conversation in conversations:
            if (refusal := conversation.refusal()) is not None:
                raise refusal
        return web.Response(body=encode_json(response.whole(parts)), content_type=JSON)

    async def _stream(
        self,
        request: HttpRequest,
        conversation: ServedConversation,
        chunks: ChatResponse | CompletionResponse,
        *,
        with_usage: bool,
    ) -> web.StreamResponse:
        """Stream the parts. A failure before the first part is an error with its own status."""
        began = asyncio.get_running_loop().time()
        parts = await conversation.next(self.options.ping_s)
        if (refusal := conversation.refusal()) is not None and not parts:
            raise refusal
        self.metrics.first_part.observe(asyncio.get_running_loop().time() - began)
        response = web.StreamResponse(headers=STREAM_HEADERS)
        await response.prepare(request)
        write = partial(write_within, request, response, timeout_s=self.options.write_timeout_s)
        opening = chunks.first()
        while parts is not None:
            await write(opening + (chunks.chunks(parts) or PING))
            parts, opening = await conversation.next(self.options.ping_s), b""
        if (refusal := conversation.refusal()) is not None:
            await write(opening + failed(refusal))
        else:
            await write(opening + chunks.last(with_usage=with_usage))
        await response.write_eof()
        return response

    # ---- what else is asked ----

    async def feedback(self, request: HttpRequest) -> web.Response:
        """/v1/feedback: a person's verdict on one choice."""
        body = await self._read(request, read_feedback)
        if self._store is None:
            raise RequestError("nothing is kept here: start the server with --out", status=501, kind="not_kept")
        conversation = body.id.removeprefix("chatcmpl-").removeprefix("cmpl-")
        if not await self._store.feedback(conversation, body.index, body.thumb, body.comment):
            raise RequestError(
                f"there is no choice {body.index} of {body.id[:80]!r}; give `id` and `index` of an answer",
                status=404,
                field="id",
                kind="not_found",
            )
        self.metrics.thumbs += 1
        return json_response({"object": "feedback", "id": body.id, "index": body.index, "thumb": body.thumb})

    async def models(self, request: HttpRequest) -> web.Response:
        """/v1/models."""
        return json_response({"object": "list", "data": [self._model(name) for name in MODELS]})

    async def model(self, request: HttpRequest) -> web.Response:
        """/v1/models/NAME."""
        name = request.names["model"]
        check_model(name)
        return json_response(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        payload = {"id": name, "object": "model", "created": self._started, "owned_by": "rocstar"}
        return payload | {"max_model_len": self.options.max_context}

    async def tokenize(self, request: HttpRequest) -> web.Response:
        """/tokenize: ids of a text, or of messages."""
        body = await self._read(request, read_tokenize)
        ids = await self._reader.run(self._builder.tokenize, body)
        return json_response({"tokens": ids, "count": len(ids), "max_model_len": self.options.max_context})

    async def detokenize(self, request: HttpRequest) -> web.Response:
        """/detokenize: the text of ids, special tokens shown; lm-eval asks for it, too."""
        body = await self._read(request, read_detokenize)
        return json_response({"prompt": await self._reader.run(self.agent.chat.decode, body.prompt_ids or ())})

    async def tokenizer_info(self, request: HttpRequest) -> web.Response:
        """/tokenizer_info, which lm-eval asks for."""
        chat = self.agent.chat
        names = {name: getattr(chat.tokenizer, name, None) for name in ("bos_token", "eos_token", "pad_token")}
        return json_response({**names, "chat_template": chat.template})

    async def health(self, request: HttpRequest) -> web.Response:
        """/health, /readyz: 503 while the server shuts down."""
        if self.conversations.is_closing:
            raise RequestError("the server is shutting down", status=503, kind="closing")
        return json_response({"status": "ok"})

    async def alive(self, request: HttpRequest) -> web.Response:
        """/healthz: the process answers."""
        return json_response({"status": "ok"})

    async def show_metrics(self, request: HttpRequest) -> web.Response:
        """/metrics, for Prometheus."""
        return web.Response(body=self.metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def description(self, request: HttpRequest) -> web.Response:
        """/openapi.json."""
        return json_response(build_document(needs_token=bool(self.options.owners)))

    def _gauges(self) -> dict[str, float]:
        load = self.agent.inference.load()
        return {
            "choices_in_flight": self.conversations.in_flight,
            "kv_tokens_total": load.total,
            "kv_tokens_used": load.used,
            "engine_running": load.running,
            "engine_waiting": load.waiting,
        }

    # ---- of every request ----

    async def _read(self, request: HttpRequest, read: Callable[[Fields], R]) -> R:
        """Read and parse the body. Raises RequestError."""
        with self._holding(request):
            return await self._reader.read(read, await self._read_body(request))

    @contextmanager
    def _holding(self, request: HttpRequest) -> Iterator[None]:
        """The body counts as held while the block runs. Raises RequestError."""
        most = self.options.max_body_bytes
        size = most if request.content_length is None else min(request.content_length, most)
        if self._held_bytes + size > MAX_HELD_BODIES * most:
            raise RequestError(
                f"bodies of {self._held_bytes} bytes arrive or are being read; ask again later",
                status=429,
                kind="queue_full",
            )
        self._held_bytes += size
        try:
            yield
        finally:
            self._held_bytes -= size

    async def _read_body(self, request: HttpRequest) -> bytes:
        options = self.options
        return await read_body(request, max_bytes=options.max_body_bytes, timeout_s=options.body_timeout_s)

    def _note_unknown_fields(self, request: HttpRequest, names: Iterable[str]) -> None:
        """Note each unknown field once for the operator."""
        unknown = {name for name in names if name not in KNOWN}
        new = sorted(name for name in unknown if name[:MAX_FIELD_CHARS] not in self._noted_fields) if unknown else []
        if new and len(self._noted_fields) < REMEMBERED:
            self._noted_fields.update(name[:MAX_FIELD_CHARS] for name in new)
            names = ", ".join(printable_line(name, MAX_FIELD_CHARS) for name in new[:MAX_NOTED_FIELDS])
            more = f" and {len(new) - MAX_NOTED_FIELDS} more" if len(new) > MAX_NOTED_FIELDS else ""
            self._note(f"{_client_name(request)} sends {names}{more}, which nothing here reads")

    def _note_repeated_seed(self, request: HttpRequest, body: GenerationRequest, order: ConversationOrder) -> None:
        """Log once per client that it repeats a request with its seed, which gives the same answer."""
        client = _client_name(request)
        if body.seed is None or order.temperature == 0 or client in self._noted_clients:
            return
        asking = client, order.task.id, body.seed
        if asking in self._seeds:
            if len(self._noted_clients) < REMEMBERED:
                self._noted_clients.add(client)
            self._note(
                f"{client} repeats a request with seed {body.seed} and gets the same answer; for other "
                "samples omit the seed, or request several choices with n"
            )
        self._seeds[asking] = None
        if len(self._seeds) > REMEMBERED:
            del self._seeds[next(iter(self._seeds))]


def _router_error(error: web.HTTPException) -> RequestError:
    if error.status == 413:
        return too_large()
    code = "bad_expectation" if error.status == 417 else "no_such_path"
    return RequestError(f"{error.reason}: {error.status}", status=error.status, kind=code)


def _client_name(request: HttpRequest) -> str:
    return printable_line(request.headers.get("User-Agent", "a client without a name"), 80)
