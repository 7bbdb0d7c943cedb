"""Who may ask: whoever has the token; without one, programs of this machine and no web page.

The rules for web pages, and for names that stand for this machine, are in `rocstar.sandbox.loopback`.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from rocstar.engine.serve.refusals import ServeRefusal
from rocstar.sandbox.loopback import bearer_of, foreign, is_loopback

MIN_TOKEN_CHARS = 16
OPEN_PATHS = frozenset(("/health", "/", "/docs", "/openapi.json"))
"""Paths that tell nothing of any conversation."""


class ServeGuard:
    """Invariant: with a token nothing but `OPEN_PATHS` is answered without it; without one, nothing under a
    name that somebody else may have made to stand for this machine, nor for a web page."""

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()

    def check(self, path: str, headers: Mapping[str, str], host: str) -> bool:
        """Whether the request needed permission, and has it: False for a path that anybody may ask for.
        ServeRefusal for a request that may not be answered."""
        if path in OPEN_PATHS:
            return False
        if self._token is not None:
            if not hmac.compare_digest(bearer_of(headers), self._token):
                raise ServeRefusal(
                    "give the server's token as `Authorization: Bearer TOKEN`",
                    status=401,
                    code="invalid_api_key",
                )
            return True
        if (found := foreign(headers, host)) is not None:
            raise ServeRefusal(found.why, status=403, param=found.header or None, code="forbidden")
        return True


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
