"""Bodies of requests over HTTP that the SDK would parse in its event loop for as long as they are large.

body > `MOST_IN_LOOP_BYTES` --> another process: long texts of a call are taken out, and marked
     --> the SDK parses what is left, of at most so many bytes --> tools.py puts the texts back
"""

import base64
import binascii
import json
import secrets
from collections.abc import Mapping
from typing import Any

from rocstar.sandbox.service.errors import Refused, TooLarge

MOST_IN_LOOP_BYTES = 1 << 16
"""Of a body that the SDK parses: two milliseconds at most."""

LONG_CHARS = 1 << 12
"""Of a text that is taken out."""

LongTexts = Mapping[str, str | bytes]
"""Of one request: what was taken out, by the mark in its place."""

NO_TEXTS: LongTexts = {}


def lightened(body: bytes) -> tuple[bytes, LongTexts]:
    """A body of at most `MOST_IN_LOOP_BYTES`, and the texts that it only marks: `code` and `stdin` of a call,
    and as bytes its files. Raises Refused for what is no JSON, TooLarge for one that is large elsewhere."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is no JSON: {str(error)[:100]}") from None
    texts: dict[str, str | bytes] = {}

    def mark(text: str | bytes) -> str:
        name = secrets.token_hex(16)
        texts[name] = text
        return name

    arguments = _arguments(message)
    for name in ("code", "stdin"):
        if _is_long(arguments.get(name)):
            arguments[name] = mark(arguments[name])
    if _is_long(arguments.get("content_base64")):
        arguments["content_base64"] = mark(_decoded(arguments["content_base64"]))
    files = arguments.get("files")
    if isinstance(files, dict):
        long = {name: mark(text.encode("utf-8", "replace")) for name, text in files.items() if _is_long(text)}
        arguments["files"] = {**files, **long}
    light = json.dumps(message).encode()
    if len(light) > MOST_IN_LOOP_BYTES:
        found, most = len(light), MOST_IN_LOOP_BYTES
        raise TooLarge(
            f"the request has {found} bytes besides code, stdin and files; at most {most} are read"
        )
    return light, texts


def _arguments(message: Any) -> dict[str, Any]:
    """Of a call; empty for any other message."""
    params = message.get("params") if isinstance(message, dict) else None
    arguments = params.get("arguments") if isinstance(params, dict) else None
    return arguments if isinstance(arguments, dict) else {}


def _is_long(text: object) -> bool:
    return isinstance(text, str) and len(text) > LONG_CHARS


def _decoded(text: str) -> str | bytes:
    """The content; the text itself if it is no base64, for the tool to refuse."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return text
