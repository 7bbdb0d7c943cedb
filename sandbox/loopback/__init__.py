"""Servers on this machine: which names stand for it, which requests are a web page's, whose client is gone.

A page in a browser on this machine reaches loopback too, also under a name that somebody else has made to
stand for it (DNS rebinding), under which the page would be the server's own.

What every server uses besides is in the modules of this package: connections (door.py), what owners share
(shares.py), bodies that are decoded in other processes (apart.py), requests that are not HTTP (malformed.py),
text for a terminal (printable.py).
"""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import asyncio

    from aiohttp import web

GONE = 499
"""Nginx's number for a client that closed its request; nobody receives it."""


_HOST = re.compile(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]*)?")
"""A Host header. Strict: what stands between an address and the end would be part of another name."""


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
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    if found["v6"] is not None:
        return _is_address(found["v6"])
    name = found["name"].lower().removesuffix(".")
    return name == "localhost" or name.endswith(".localhost") or _is_address(name)


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


def user_of_peer(transport: asyncio.BaseTransport) -> int | None:
    """The user who owns the other end of a connection of loopback; None where that cannot be known (IPv6, no
    /proc)."""
    peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    if peer is None or own is None or len(peer) != 2:
        return None
    for table, mapped in (("tcp", ""), ("tcp6", "0000000000000000FFFF0000")):
        ends = [f"{mapped}{_as_kernel_writes(address)}" for address in (peer, own)]
        with suppress(OSError, ValueError), open(f"/proc/net/{table}", encoding="ascii") as lines:
            for line in lines:
                words = line.split()
                if words[1:3] == ends:
                    return int(words[7])
    return None


def _as_kernel_writes(address: tuple[str, int]) -> str:
    """An IPv4 address and port, as in /proc/net/tcp: the address as a number of this machine's byte order."""
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"


def bearer_of(headers: Mapping[str, str]) -> bytes:
    """The token of `Authorization: Bearer TOKEN`; empty without one. Any bytes of a client become some text:
    compare it by `hmac.compare_digest`."""
    scheme, _, given = headers.get("Authorization", "").partition(" ")
    return given.strip().encode("utf-8", "replace") if scheme.lower() == "bearer" else b""


async def send_continue(request: web.BaseRequest) -> None:
    """Answer `Expect: 100-continue`. Raises HTTPExpectationFailed for any other expectation."""
    from aiohttp import HttpVersion11, web

    expected = request.headers.get("Expect", "")
    if request.version < HttpVersion11:
        return
    if expected.lower() != "100-continue":
        raise web.HTTPExpectationFailed(text=f"Expect is {expected[:60]!a}; send 100-continue, or none")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the answer has not begun


def hung_up(request: web.Request) -> web.Response:
    """What a handler returns whose client is gone or takes nothing. Its connection ends here. aiohttp would
    log a ConnectionError that is raised instead with its traceback, as a mistake of the server."""
    from aiohttp import web  # who only asks for names does without it

    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=GONE)
