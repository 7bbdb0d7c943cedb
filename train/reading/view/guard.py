"""Who may ask the page's server, and what a browser may do with its answers.

The server listens on loopback, which every user of the machine reaches, and so does any page in the reader's
browser:

    a request with the token           answered; the printed address has it, a cookie keeps it
    of this user's own process, or of  answered, unless it comes under another name (DNS rebinding)
    root, without the token
    any other                          401
    data for another site's page       403
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from rocstar.sandbox.loopback import bearer_of, is_own_name
from rocstar.sandbox.loopback.door import Door, DoorFull

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

    def __init__(self, token: str | None, door: Door) -> None:
        """token: None = every process of this machine may ask."""
        self._token = None if token is None else token.encode()
        self._door = door
        self._cookie = f"rocstar-view-{hashlib.sha256(self._token or b'').hexdigest()[:8]}"

    @web.middleware
    async def answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The handler's answer, or a refusal in the form of what was asked: JSON for data, text for pages."""
        connection = request.protocol
        try:
            if (refusal := self._refusal(request)) is not None:
                return refusal
            self._door.begins(connection, OWNER)
            if self._token is not None and request.path == "/" and "token" in request.query:
                return self._to_page()
            return await handler(request)
        except DoorFull as full:
            return refused(request, 429, str(full))
        except web.HTTPException as error:
            if error.status < 400:
                raise
            response = refused(request, error.status, error.text or error.reason)
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
            return response
        finally:
            self._door.ends(connection)

    def _refusal(self, request: web.Request) -> web.Response | None:
        has_token = self._has_token(request)
        if not has_token and not is_own_name(request.headers.get("Host", "")):
            return refused(request, 403, "open this page as http://localhost or http://127.0.0.1")
        if is_data(request) and request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return refused(request, 403, "another site's page asked for this")
        if self._token is None or has_token:
            return None
        if self._door.peer_user(request.protocol) in (os.getuid(), 0):
            return None
        return refused(request, 401, "open the address that `rocstar view` printed: it has the token")

    def _has_token(self, request: web.Request) -> bool:
        if self._token is None:
            return False
        asked = request.query.get("token", ""), request.cookies.get(self._cookie, "")
        given = [bearer_of(request.headers), *(text.encode("utf-8", "replace") for text in asked)]
        return any([hmac.compare_digest(one, self._token) for one in given])

    def _to_page(self) -> web.Response:
        """To the page without the token in its address. No path: a proxy may have put one in front."""
        token = (self._token or b"").decode()
        cookie = f"{self._cookie}={token}; HttpOnly; SameSite=Lax"
        return web.Response(status=303, headers={"Location": "./", "Set-Cookie": cookie})


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Of every answer, streams and mistakes too."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


def is_data(request: web.Request) -> bool:
    """Whether scripts ask for it."""
    return request.path.startswith("/api/") or request.path in ("/export", "/events")


def refused(request: web.Request, status: int, why: str) -> web.Response:
    """A refusal, as the page's scripts or as people read it."""
    if is_data(request):
        return web.json_response({"error": why}, status=status)
    return refused_page(status, why)


def refused_page(status: int, why: str) -> web.Response:
    return web.Response(status=status, text=f"{status}: {why}\n", headers=HEADERS)
