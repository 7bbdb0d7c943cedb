"""The server of `rocstar view`: files of the page, JSON responses, and a stream of changes.

    browser ──GET──> guard ──> request ──the reading thread──> RunReader ──> JSON, with an ETag
            <──/events── RunWatcher

A request waits for the reading thread, at most READ_S; a stream waits for changes. The server writes no files
and has only GET routes.
"""

import asyncio
import contextlib
import hashlib
import hmac
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web

from rocstar.engine.record.json_record import RecordError
from rocstar.sandbox.http.connections import ConnectionLimiter, ConnectionsExhausted
from rocstar.sandbox.http.guard import is_local_name, parse_bearer_token
from rocstar.sandbox.http.malformed import protocol_factory
from rocstar.train.reading.view.change_events import PING_S, RunWatcher
from rocstar.train.reading.view.conversation import PAGE_TOKENS, WithheldError
from rocstar.train.reading.view.document import encode_json, now_as_text, page_files
from rocstar.train.reading.view.export_page import MOST, export_page
from rocstar.train.reading.view.reader import MAX_PAGE, NothingThereError, RunReader
from rocstar.train.reading.view.viewed_run import STEPS
from rocstar.train.recipe.errors import ConfigError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
OWNER: Final = ""
"""Whoever may ask."""


class PageGuard:
    """Invariant: without the token nothing is answered but requests of this user's own processes."""

    def __init__(self, token: str | None, connections: ConnectionLimiter) -> None:
        """token: None = every process of this machine may ask."""
        self._token = None if token is None else token.encode()
        self._connections = connections
        self._cookie = f"rocstar-view-{hashlib.sha256(self._token or b'').hexdigest()[:8]}"

    @web.middleware
    async def answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Return the handler's response, or an error: JSON for data, text for pages."""
        connection = request.protocol
        try:
            if (refusal := self._refusal(request)) is not None:
                return refusal
            self._connections.begin_request(connection, OWNER)
            if self._token is not None and request.path == "/" and "token" in request.query:
                # Without the token in the address. The location is relative: a proxy may add a prefix.
                cookie = f"{self._cookie}={self._token.decode()}; HttpOnly; SameSite=Lax"
                return web.Response(status=303, headers={"Location": "./", "Set-Cookie": cookie})
            return await handler(request)
        except ConnectionsExhausted as full:
            return error_response(request, 429, str(full))
        except web.HTTPException as error:
            if error.status < 400:
                raise
            response = error_response(request, error.status, error.text or error.reason)
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
            return response
        finally:
            self._connections.end_request(connection)

    def _refusal(self, request: web.Request) -> web.Response | None:
        has_token = False
        if self._token is not None:
            texts = request.query.get("token", ""), request.cookies.get(self._cookie, "")
            given = [parse_bearer_token(request.headers), *(t.encode("utf-8", "replace") for t in texts)]
            has_token = any([hmac.compare_digest(one, self._token) for one in given])
        if not has_token and not is_local_name(request.headers.get("Host", "")):
            return error_response(request, 403, "open this page as http://localhost or http://127.0.0.1")
        if is_data(request) and request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return error_response(request, 403, "another site's page asked for this")
        if self._token is None or has_token:
            return None
        if self._connections.peer_user(request.protocol) in (os.getuid(), 0):
            return None
        return error_response(request, 401, "open the address that `rocstar view` printed: it has the token")


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers to each response, including streams and errors."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


def is_data(request: web.Request) -> bool:
    """Return True for a request of a script."""
    return request.path.startswith("/api/") or request.path in ("/export", "/events")


def error_response(request: web.Request, status: int, why: str) -> web.Response:
    """Return an error, as JSON for scripts or as text for people."""
    if is_data(request):
        return web.json_response({"error": why}, status=status)
    return error_page(status, why)


def error_page(status: int, why: str) -> web.Response:
    return web.Response(status=status, text=f"{status}: {why}\n", headers=HEADERS)


READ_S: Final = 60.0
"""An answer that takes longer is given up."""
_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_ERRORS: Final[Mapping[type[Exception], type[web.HTTPException]]] = {
    ConfigError: web.HTTPBadRequest,
    WithheldError: web.HTTPForbidden,
    NothingThereError: web.HTTPNotFound,
    RecordError: web.HTTPNotFound,
    FileNotFoundError: web.HTTPNotFound,
}
MAX_DIGITS: Final = 18
BACKLOG: Final = 128
Answer = Callable[[web.Request], Any]


class PageServer:
    """The application, and the thread that reads for it."""

    def __init__(self, reader: RunReader, *, token: str | None = None) -> None:
        """token: asked of requests that are not of this user's own processes; None = of none."""
        self._reader = reader
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="view")
        self._watcher = RunWatcher(self._stamps)
        self._ending = asyncio.Event()
        self._connections = ConnectionLimiter.shared()
        self.app = web.Application(middlewares=[PageGuard(token, self._connections).answered])
        self.app.on_response_prepare.append(add_headers)
        self.app.on_shutdown.append(self._end)
        self.app.add_routes(self._routes())

    def _routes(self) -> list[web.RouteDef]:
        texts = page_files()
        index = texts.pop("index.html")
        version = hashlib.blake2b("".join(texts.values()).encode(), digest_size=8).hexdigest()
        found = [web.get("/", _text(index.replace('="static/', f'="static/{version}/'), ".html"))]
        found += [
            web.get(f"/static/{version}/{name}", _text(text, Path(name).suffix, is_for_ever=True))
            for name, text in texts.items()
        ]
        found += [web.get(f"/api/{path}", self._asked(answer)) for path, answer in self._answers().items()]
        found += [web.get("/export", self._export), web.get("/events", self._events)]
        return found

    def _answers(self) -> dict[str, Answer]:
        """A question of the page by its path; each is asked in the reading thread."""
        reader = self._reader
        return {
            "runs": lambda _: reader.runs(),
            "overlay": lambda r: reader.overlay(r.query.getall("run", [])),
            "paired": lambda r: reader.paired(_evaluation(r, "a"), _evaluation(r, "b")),
            "run": lambda r: reader.run(_run(r)),
            "metrics": lambda r: reader.metrics(_run(r)),
            "log": lambda r: reader.log(_run(r)),
            "groups": lambda r: reader.groups_of(_run(r), _number(r, "step") if "step" in r.query else None),
            "list": lambda r: reader.rows(
                *_collection(r), **_filter_of(r), start=_number(r, "from", 0), num=_number(r, "num", MAX_PAGE)
            ),
            "search": lambda r: reader.search(
                *_collection(r), **_filter_of(r), text=r.query.get("text", ""), start=_number(r, "from", 0)
            ),
            "conversation": lambda r: reader.conversation(*_collection(r), *_place(r)),
            "tokens": lambda r: reader.tokens(
                *_collection(r), *_place(r), start=_number(r, "from", 0), stop=_number(r, "to", PAGE_TOKENS)
            ),
            "strip": lambda r: reader.strip(*_collection(r), *_place(r), bins=_number(r, "bins", 600)),
            "group": lambda r: reader.group(_run(r), step=_number(r, "step"), task=_number(r, "task", base=16)),
            "alarms": lambda r: reader.alarms(_run(r)),
            "families": lambda r: reader.families(_run(r)),
            "task": lambda r: reader.task(_run(r), task=_number(r, "task", base=16)),
            "evaluation": lambda r: reader.evaluation(_run(r), r.query.get("step", "")),
            "grid": lambda r: reader.grid(_run(r), r.query.get("step", ""), r.query.get("set", "")),
        }

    def _asked(self, answer: Answer) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.Response:
            body = await self._read(lambda: encode_json(answer(request)))
            response = _tagged(request, body, {}, content_type="application/json")
            if response.status == 200 and len(body) > 4096:
                response.enable_compression(strategy=1)
            return response

        return handle

    async def _read(self, work: Callable[[], Any]) -> Any:
        """Run `work` in the reading thread. HTTPException if it fails or takes longer than READ_S."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(READ_S):
                return await loop.run_in_executor(self._thread, work)
        except tuple(_ERRORS) as error:
            answer = next(answer for kind, answer in _ERRORS.items() if isinstance(error, kind))
            # A name of the file system may have half a surrogate pair.
            raise answer(text=str(error).encode(errors="backslashreplace").decode()) from None
        except TimeoutError:
            raise web.HTTPServiceUnavailable(text="reading took longer than a minute") from None

    async def _stamps(self) -> dict[str, str]:
        stamps: dict[str, str] = {}
        with contextlib.suppress(web.HTTPException):
            stamps = await self._read(self._reader.stamps)
        return stamps

    async def _export(self, request: web.Request) -> web.Response:
        """The trajectories that are named, or a sample of the run's, as one file."""
        run, collection = _collection(request)
        named = []
        for text in request.query.getall("at", []):
            stem, _, row = text.rpartition(":")
            if not (row.isascii() and row.isdecimal()) or len(row) > MAX_DIGITS:
                raise web.HTTPBadRequest(text=f"at={text[:80]!r}: a file and a row, step_000001:7 for example")
            named.append((stem, int(row)))

        def page() -> str:
            places = named or self._reader.sample(run, collection, MOST)
            start = "list" if named else "run"
            return export_page(self._reader, run, collection, places, made=now_as_text(), start=start)

        text = await self._read(page)
        name = "".join(c if c.isalnum() else "-" for c in run) or "run"
        headers = {"Content-Disposition": f'attachment; filename="view-{name}.html"'}
        return web.Response(text=text, content_type="text/html", headers=headers)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Write changes until the reader leaves or takes none, or the server ends."""
        with self._watcher.watching() as page:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            ending = asyncio.ensure_future(self._ending.wait())
            news = asyncio.ensure_future(page.news())
            try:
                await _write(response, b": open\n\n")
                while not self._ending.is_set():
                    await asyncio.wait({ending, news}, timeout=PING_S, return_when=asyncio.FIRST_COMPLETED)
                    if not news.done():
                        await _write(response, b": ping\n\n")
                        continue
                    changes = msgspec.json.encode(news.result())
                    news = asyncio.ensure_future(page.news())
                    await _write(response, b"data: " + changes + b"\n\n")
            except (ConnectionResetError, TimeoutError):
                pass
            finally:
                ending.cancel()
                news.cancel()
            return response

    async def _end(self, _: web.Application) -> None:
        self._ending.set()

    async def serve(self, host: str, port: int, ready: Callable[[int], None], stop: asyncio.Event) -> None:
        """Serve until `stop`; `ready` receives the port. OSError if the port is not available."""
        runner = web.AppRunner(self.app, access_log=None, shutdown_timeout=2.0)
        await runner.setup()
        try:
            listening = socket.create_server((host, port), backlog=BACKLOG)
            assert runner.server is not None
            made = protocol_factory(runner.server, error_page)
            async with self._connections.opened([listening], made), asyncio.TaskGroup() as group:
                ready(listening.getsockname()[1])
                watching = group.create_task(self._watcher.run())
                await stop.wait()
                watching.cancel()
        finally:
            await runner.cleanup()
            self._thread.shutdown(wait=False, cancel_futures=True)


async def _write(response: web.StreamResponse, data: bytes) -> None:
    """TimeoutError where a reader's buffer stays full."""
    async with asyncio.timeout(PING_S):
        await response.write(data)


def _text(text: str, suffix: str, *, is_for_ever: bool = False) -> Callable[[web.Request], Any]:
    """`is_for_ever`: the content at this address never changes, as the address has a digest."""
    body = text.encode()
    more = {"Cache-Control": "max-age=31536000, immutable"} if is_for_ever else {}
    kind = _TYPES.get(suffix, "application/octet-stream")

    async def handle(request: web.Request) -> web.Response:
        return _tagged(request, body, more, content_type=kind, charset="utf-8")

    return handle


def _tagged(request: web.Request, body: bytes, headers: Mapping[str, str], **form: Any) -> web.Response:
    """Return a response with the digest of its body as ETag; 304 without a body if the client has it."""
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    if request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers={"ETag": tag})
    return web.Response(body=body, headers={"ETag": tag, **headers}, **form)


def _run(request: web.Request) -> str:
    return request.query.get("run", "")


def _collection(request: web.Request) -> tuple[str, str]:
    return _run(request), request.query.get("of", STEPS)


def _filter_of(request: web.Request) -> dict[str, str]:
    return {"words": request.query.get("filter", ""), "sort": request.query.get("sort", "")}


def _place(request: web.Request) -> tuple[str, int]:
    return request.query.get("file", ""), _number(request, "row")


def _evaluation(request: web.Request, name: str) -> tuple[str, str]:
    run, _, step = request.query.get(name, "").rpartition(":")
    return run, step


def _number(request: web.Request, name: str, default: int | None = None, *, base: int = 10) -> int:
    """Parse a query parameter. ConfigError unless it is a whole number of at least 0."""
    text = request.query.get(name)
    if text is None and default is not None:
        return default
    try:
        number = int(text or "", base)
    except ValueError:
        number = -1
    if number < 0:
        raise ConfigError(f"{name}={(text or '')[:40]!r} is no number; give a whole one of at least 0")
    return min(number, 2**64 - 1)
