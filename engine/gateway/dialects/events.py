"""JSON of answers, events of streams, and errors in OpenAI's format."""

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.http.guard import UNAUTHORIZED

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_HALF = re.compile("[\ud800-\udfff]")
_encoder = msgspec.json.Encoder()

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 504: "timeout_error"}
_CODES = {UNAUTHORIZED: "invalid_api_key", "": None}
"""OpenAI's codes, for kinds that have another name there."""


def encode_json(value: Any) -> bytes:
    """Return the value as JSON. An unpaired surrogate, which a policy may write, becomes U+FFFD: many
    parsers, including this server's, reject its escape, and clients send responses back."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        text = json.dumps(msgspec.to_builtins(value), separators=(",", ":"), ensure_ascii=False)
        return _HALF.sub("\ufffd", text).encode()


def encode_event(value: Any) -> bytes:
    """Return one event of a stream."""
    return b"data: " + encode_json(value) + b"\n\n"


def named_event(value: Mapping[str, Any]) -> bytes:
    """Return one event of a stream that has the type of the value as its name."""
    return b"event: " + str(value["type"]).encode() + b"\n" + encode_event(value)


def error_object(error: RequestError) -> dict[str, Any]:
    """Return the error in OpenAI's format."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    code = _CODES.get(error.kind, error.kind)
    return {"error": {"message": str(error), "type": kind, "param": error.field or None, "code": code}}


def failed(problem: RequestError) -> bytes:
    """Return the last event of a stream that failed, in OpenAI's format."""
    return encode_event(error_object(problem))
