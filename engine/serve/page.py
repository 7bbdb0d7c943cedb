"""The page at `/`: what answers here, its routes, and a command for each that takes something.

It fetches nothing and runs nothing: its policy (Content-Security-Policy) allows its own style alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from html import escape

from rocstar.engine.serve.asked import MODELS
from rocstar.engine.serve.openapi import CONVERSATIONS, OPERATION, ROUTES, TOKENS, ServedRoute

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
pre, code { font: 14px/1.4 ui-monospace, monospace; }
pre { background: #8882; padding: .75rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
td { padding: .1rem 1rem .1rem 0; vertical-align: top; }
div { overflow-x: auto; }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def page(host: str, *, needs_token: bool) -> str:
    """The HTML. host: what the client calls this server, which is the client's word."""
    guard = "It needs a token." if needs_token else "It takes requests from this machine, without a token."
    sections = "".join(_section(kind, host, needs_token) for kind in (CONVERSATIONS, TOKENS, OPERATION))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>rocstar serve</title>
<style>{STYLE}</style>
</head>
<body>
<h1>rocstar serve</h1>
<p>This server speaks OpenAI's protocol; its models are {" and ".join(MODELS)}. {guard}
Its whole description is <a href="openapi.json">openapi.json</a>.</p>
{sections}</body>
</html>
"""


def _section(kind: str, host: str, needs_token: bool) -> str:
    routes = [route for route in ROUTES if route.kind == kind]
    rows = "".join(
        f"<tr><td><code>{escape(route.method)} {escape(route.path)}</code></td>"
        f"<td>{escape(route.summary)}</td></tr>\n"
        for route in routes
    )
    shown = "".join(
        f"<pre>{escape(curl(route, host, needs_token))}</pre>\n"
        for route in routes
        if route.example is not None
    )
    return f"<h2>{escape(kind)}</h2>\n<div><table>{rows}</table></div>\n{shown}"


def curl(route: ServedRoute, host: str, needs_token: bool) -> str:
    """The command that sends a route's example."""
    words = ["curl", "-s", f"http://{host}{route.path}", "-d", json.dumps(route.example)]
    return shlex.join(words) + (' -H "Authorization: Bearer $TOKEN"' if needs_token else "")
