"""Who may ask the page's server, and what a browser may do with its answers.

The server listens on this machine alone, but any page in the reader's browser can send requests there: one
that comes under another name (DNS rebinding), or from another site, is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from rocstar.sandbox.loopback import is_own_name

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


@web.middleware
async def guarded_answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    """403 for a Host that others can make to stand for this machine, or data for another site."""
    if not is_own_name(request.headers.get("Host", "")):
        return _refused("open this page as http://localhost or http://127.0.0.1")
    is_data = request.path.startswith("/api/") or request.path in ("/export", "/events")
    if is_data and request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        return _refused("another site's page asked for this")
    return await handler(request)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Of every answer, streams and mistakes too."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


def _refused(why: str) -> web.Response:
    return web.Response(status=403, text=f"403: {why}\n")
