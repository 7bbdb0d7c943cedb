"""The page at `/`: what runs here, its routes, an example for each dialect, a form that runs a program.

It needs nothing from elsewhere. Its policy (Content-Security-Policy) lets no script run but the one below,
known by its hash, and that one shows what a program printed as text: a program cannot write into the page.
"""

import base64
import hashlib
import json
import shlex
from collections.abc import Sequence
from html import escape

from rocstar.sandbox.service.openapi import DIALECTS, ROUTES, Route

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
pre, textarea, code { font: 14px/1.4 ui-monospace, monospace; }
pre { background: #8882; padding: .75rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
textarea, input { width: 100%; box-sizing: border-box; }
td { padding: .1rem 1rem .1rem 0; vertical-align: top; }
div.wide { overflow-x: auto; }
:root { color-scheme: light dark; }
"""

SCRIPT = """
"use strict";
const form = document.getElementById("form");
function show(id, text) {
  const place = document.getElementById(id);
  place.textContent = text;
  place.hidden = text === "";
}
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  for (const id of ["stdout", "value", "stderr"]) show(id, "");
  show("status", "running");
  const headers = { "Content-Type": "application/json" };
  if (form.token && form.token.value) headers.Authorization = "Bearer " + form.token.value;
  const body = JSON.stringify({ code: form.code.value, stdin: form.stdin.value });
  try {
    const answer = await fetch("v1/run", { method: "POST", headers, body });
    const result = await answer.json();
    if (!answer.ok) throw new Error(answer.status + ": " + result.error.message);
    show("status", result.status + " after " + result.wall_s.toFixed(3) + " s");
    show("stdout", result.stdout);
    show("value", result.value === null ? "" : result.value);
    show("stderr", result.stderr);
  } catch (error) {
    show("status", String(error.message));
  }
});
"""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_hash(SCRIPT)}; style-src {_hash(STYLE)}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def page(host: str, flavours: Sequence[str], *, needs_token: bool) -> str:
    """The HTML. host: what the client calls this service, which is the client's word."""
    token_field = (
        '<p><label>Token <input name="token" type="password" autocomplete="off" required></label></p>'
    )
    guard = "It needs a token." if needs_token else "It takes requests from this machine, without a token."
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>rocstar sandbox</title>
<style>{STYLE}</style>
</head>
<body>
<h1>rocstar sandbox</h1>
<p>This service runs programs in isolation, in {escape(", ".join(flavours))}. {guard}
Its whole description is <a href="openapi.json">openapi.json</a>.</p>
<h2>Run a program</h2>
<form id="form">
<p><label>Program
<textarea name="code" rows="6" spellcheck="false" required>print(6 * 7)</textarea></label></p>
<p><label>Standard input <textarea name="stdin" rows="1" spellcheck="false"></textarea></label></p>
{token_field if needs_token else ""}
<p><button>Run</button> <output id="status"></output></p>
</form>
<pre id="stdout" hidden></pre><pre id="value" hidden></pre><pre id="stderr" hidden></pre>
{"".join(_section(name, host, needs_token) for name in DIALECTS)}
<script>{SCRIPT}</script>
</body>
</html>
"""


def _section(dialect: str, host: str, needs_token: bool) -> str:
    routes = [route for route in ROUTES if route.dialect == dialect]
    example = next((route for route in routes if route.example is not None), None)
    rows = "".join(
        f"<tr><td><code>{escape(route.method)} {escape(route.path)}</code></td>"
        f"<td>{escape(route.summary)}</td></tr>\n"
        for route in routes
    )
    shown = f"<pre>{escape(curl(example, host, needs_token))}</pre>\n" if example else ""
    return f'<h2>{escape(dialect)}</h2>\n{shown}<div class="wide"><table>{rows}</table></div>\n'


def curl(route: Route, host: str, needs_token: bool) -> str:
    """The command that sends a route's example."""
    words = ["curl", "-s", f"http://{host}{route.path}", "-d", json.dumps(route.example)]
    guard = ' -H "Authorization: Bearer $TOKEN"' if needs_token else ""
    return shlex.join(words) + guard
