"""Authentication of the page's server, and the policy of its pages.

The server listens on loopback, which every user of the machine can reach, and so can any web page in the
reader's browser:

    a request with the token           answered; the printed address has it, a cookie keeps it
    of this user's own process, or of  answered, unless it has a foreign host name (DNS rebinding)
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

from rocstar.sandbox.http.connections import ConnectionLimiter, ConnectionsExhausted
from rocstar.sandbox.http.guard import is_local_name, parse_bearer_token

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
