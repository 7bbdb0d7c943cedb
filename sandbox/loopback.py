"""Servers on this machine: which names stand for it, which requests are a web page's, whose client is gone.

A page in a browser on this machine reaches loopback too, also under a name that somebody else has made to
stand for it (DNS rebinding), under which the page would be the server's own.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from aiohttp import web

GONE = 499
"""Nginx's number for a client that closed its request; nobody receives it."""


class Foreign(NamedTuple):
    """Why a request is not answered without a token, and the header at fault, '' for several."""

    why: str
    header: str


def foreign(headers: Mapping[str, str], host: str) -> Foreign | None:
    """What makes a request a web page's, or one under another's name; None for one of a program here."""
    origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site", "none")
    if (origin is not None and origin != f"http://{host}") or site not in ("none", "same-origin"):
        return Foreign("requests from web pages need a token", "")
    if not is_own_name(host):
        why = f"Host is {host[:60]!a}; use an address of this machine, or localhost, or set a token"
        return Foreign(why, "Host")
    return None


@lru_cache(maxsize=64)
def is_own_name(host: str) -> bool:
    """True for what nobody else can make to stand for this machine: an address, localhost. Remembered for the
    names that are asked for most: it is asked with every request."""
    with suppress(ValueError):
        name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        return name == "localhost" or name.endswith(".localhost") or _is_address(name)
    return False


def is_loopback(host: str) -> bool:
    """True if every address `host` stands for is this machine's own. Raises OSError for an unknown name."""
    if not host:  # every address
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return all(ipaddress.ip_address(entry[4][0]).is_loopback for entry in found)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def hung_up(request: web.Request) -> web.Response:
    """What a handler returns whose client is gone or takes nothing. Its connection ends here. aiohttp would
    log a ConnectionError that is raised instead with its traceback, as a mistake of the server."""
    from aiohttp import web  # who only asks for names does without it

    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=GONE)


AHEAD = 2
"""Requests of a connection that are read behind the one that is answered."""


def read_little_ahead() -> None:
    """Has aiohttp's servers of this process read `AHEAD` requests, where it is 32: each may have half a
    megabyte of headers and a body, which nobody counts before its turn."""
    from aiohttp import web_protocol

    web_protocol.MAX_MSG_QUEUE_SIZE = AHEAD


def log_no_clients_mistakes() -> None:
    """Has aiohttp's servers of this process write no traceback for a request that is no HTTP: anybody may
    send some, as many as the disk has room for. They are answered 400."""
    logging.getLogger("aiohttp.server").addFilter(_is_no_clients)


def _is_no_clients(record: logging.LogRecord) -> bool:
    from aiohttp.http_exceptions import HttpProcessingError

    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)
