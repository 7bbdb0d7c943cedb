"""Responses and log lines for requests that are not HTTP.

Any client can send any number of them, so the log has at most one line every `LOG_EVERY_S`.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from aiohttp import web, web_protocol
from aiohttp.http_exceptions import HttpProcessingError

from rocstar.sandbox.http.printable import printable_line

MAX_PIPELINED = 2
"""The maximum number of pipelined requests that are parsed ahead. aiohttp's default is 32: each may have half
a megabyte of headers and a body, which are not counted before their turn."""

LOG_EVERY_S = 1.0
NOT_HTTP = "the request is not HTTP"
_FAILED = "the server failed; its log says why"
RenderError = Callable[[int, str], web.Response]
"""A function that renders an error response from a status and its reason."""


def protocol_factory(server: web.Server, refused: RenderError) -> Callable[[], asyncio.Protocol]:
    """Return the factory of the connections' protocols; `refused` renders errors in the server's format."""
    web_protocol.MAX_MSG_QUEUE_SIZE = MAX_PIPELINED
    logger = logging.getLogger("aiohttp.server")
    if not any(isinstance(known, _OneLine) for known in logger.filters):
        logger.addFilter(_OneLine())
    return partial(_Protocol, server, refused, asyncio.get_running_loop())


class _Protocol(web_protocol.RequestHandler):
    __slots__ = ("_refused",)

    def __init__(self, server: web.Server, refused: RenderError, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(server, loop=loop, **server._kwargs)
        self._refused = refused

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Render the error in the server's format. Raises ConnectionError if the response has started."""
        super().handle_error(request, status, exc, message)  # logs it
        if isinstance(exc, HttpProcessingError):
            response = self._refused(exc.code, f"{NOT_HTTP}: {format_reason(exc)}")
        else:
            response = self._refused(status, _FAILED)
        response.force_close()
        return response


def format_reason(error: HttpProcessingError) -> str:
    """On one line, without the arrow that aiohttp draws below it."""
    return printable_line(" ".join(error.message.split()).removesuffix(" ^"))


class _OneLine(logging.Filter):
    """Writes one line for a request that is not HTTP, at most one in `LOG_EVERY_S`."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_s = float("-inf")
        self._dropped = 0

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        now_s = time.monotonic()
        if now_s - self._logged_s < LOG_EVERY_S:
            self._dropped += 1
            return False
        more = f"; {self._dropped} more since the last of these lines" if self._dropped else ""
        self._logged_s, self._dropped = now_s, 0
        client = f" from {record.args[0]}" if isinstance(record.args, tuple) and record.args else ""
        record.msg, record.args = f"a request{client} is not HTTP: {format_reason(error)}{more}", ()
        record.exc_info, record.exc_text = None, None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True
