"""The OpenAPI description of a server's routes, and the page at `/` that lists them.

The page loads nothing from elsewhere. Its Content-Security-Policy allows its own style and script by their
hashes, and nothing else.
"""

import base64
import hashlib
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, TypeVar

from rocstar.sandbox.http.responses import JSON

REF = "#/components/schemas/{name}"

STYLE, PAGE = (Path(__file__).with_name(f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "html"))


@dataclass(frozen=True, slots=True)
class RouteInfo:
    """The description of a route; a server adds its bodies.

    Attributes:
        tag: The section of the page.
        example: A body, or None.
        content: The content type of the response with status 200.
        open: The route needs no token.
    """

    method: str
    path: str
    tag: str
    summary: str
    example: Any = field(default=None, kw_only=True)
    content: str = field(default=JSON, kw_only=True)
    open: bool = field(default=False, kw_only=True)


R = TypeVar("R", bound=RouteInfo)


def ref(name: str) -> dict[str, str]:
    """Return the reference to a schema."""
    return {"$ref": REF.format(name=name)}


def json_content(name: str) -> dict[str, Any]:
    """Return the content of a JSON response with a schema."""
    return {JSON: {"schema": ref(name)}}


def build_operation(
    route: RouteInfo,
    responses: Mapping[str, Any],
    *,
    body: str | None = None,
    is_required: bool = True,
    parameters: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the description of one method of a path. `body`: the schema of the request body."""
    operation: dict[str, Any] = {"tags": [route.tag], "summary": route.summary, "responses": responses}
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        content = {JSON: {"schema": ref(body), "example": route.example}}
        operation["requestBody"] = {"required": is_required, "content": content}
    return operation


def build_openapi(
    title: str,
    tags: Sequence[str],
    routes: Iterable[R],
    describe: Callable[[R], dict[str, Any]],
    components: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the OpenAPI document as a JSON value. `describe` returns the operation of a route."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = describe(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "1"},
        "tags": [{"name": name} for name in tags],
        "paths": paths,
        "components": components,
    }


def _source_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page_headers(script: str = "") -> dict[str, str]:
    """Return the headers of the page, whose policy allows this script alone."""
    scripts = f"script-src {_source_hash(script)}; connect-src 'self'; " if script else ""
    return {
        "Content-Security-Policy": (
            f"default-src 'none'; {scripts}style-src {_source_hash(STYLE)}; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }


def render_html(title: str, intro: str, main: str, *, needs_token: bool, script: str = "") -> str:
    """Return the page. `intro` and `main` are HTML."""
    access = "It needs a token." if needs_token else "It accepts requests from this machine, without a token."
    script = f"<script>{script}</script>" if script else ""
    return PAGE.format(title=title, style=STYLE, intro=intro, access=access, main=main, script=script)


def render_section(
    tag: str, routes: Iterable[RouteInfo], host: str, *, needs_token: bool, max_examples: int | None = None
) -> str:
    """Return the examples and the table of a tag. `host`: the Host header, which the client chooses."""
    routes = [route for route in routes if route.tag == tag]
    rows = "".join(
        f"<tr><td><code>{escape(route.method)} {escape(route.path)}</code></td><td>{escape(route.summary)}</td></tr>\n"
        for route in routes
    )
    examples = [route for route in routes if route.example is not None][:max_examples]
    shown = "".join(f"<pre>{escape(curl(one, host, needs_token=needs_token))}</pre>\n" for one in examples)
    return f'<h2>{escape(tag)}</h2>\n{shown}<div class="wide"><table>{rows}</table></div>\n'


def curl(route: RouteInfo, host: str, *, needs_token: bool) -> str:
    """Return the shell command that sends the example of a route."""
    words = ["curl", "-s", f"http://{host}{route.path}", "-d", json.dumps(route.example)]
    return shlex.join(words) + (' -H "Authorization: Bearer $TOKEN"' if needs_token else "")
