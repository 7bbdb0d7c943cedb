"""Who may ask: whoever has the token; without one, programs of this machine and no web page."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from rocstar.engine.serve.refusals import ServeRefusal

MIN_TOKEN_CHARS = 16
OPEN_PATHS = frozenset(("/health", "/"))
"""Paths that tell nothing of any conversation."""


class ServeGuard:
    """Invariant: with a token nothing but `OPEN_PATHS` is answered without it; without one, nothing under a
    name that somebody else may have made to stand for this machine, nor for a web page."""

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()

    def check(self, path: str, headers: Mapping[str, str], host: str) -> None:
        """ServeRefusal for a request that may not be answered."""
        if path in OPEN_PATHS:
            return
        if self._token is not None:
            kind, _, given = headers.get("Authorization", "").partition(" ")
            if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token):
                raise ServeRefusal(
                    "give the server's token as `Authorization: Bearer TOKEN`",
                    status=401,
                    code="invalid_api_key",
                )
            return
        origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site", "none")
        if (origin is not None and origin != f"http://{host}") or site not in ("none", "same-origin"):
            raise ServeRefusal("requests from web pages need a token", status=403, code="web_page")
        if not is_own_name(host):
            raise ServeRefusal(
                f"Host is {host[:60]!a}; use an address of this machine, or localhost, or set a token",
                status=403,
                param="Host",
                code="wrong_host",
            )


def is_own_name(host: str) -> bool:
    """True for what nobody else can make to stand for this machine: an address, localhost."""
    with suppress(ValueError):
        name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        if name == "localhost" or name.endswith(".localhost"):
            return True
        ipaddress.ip_address(name)
        return True
    return False


def check_bind(host: str, token: str | None) -> None:
    """ValueError for an address that others could reach and nothing protects, or too short a token."""
    if token is not None and (len(token) < MIN_TOKEN_CHARS or not token.isascii() or " " in token):
        raise ValueError(
            f"the token has {len(token)} characters; give at least {MIN_TOKEN_CHARS} ASCII ones without "
            "blanks, for example from `openssl rand -hex 32`"
        )
    if token is None and not is_loopback(host):
        raise ValueError(
            f"--host {host} can be reached from other machines, so a token is needed: give --token-file "
            "FILE, or bind to 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """True if every address that `host` stands for is this machine's own. OSError for an unknown name."""
    if not host:  # every address
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return all(ipaddress.ip_address(entry[4][0]).is_loopback for entry in found)
