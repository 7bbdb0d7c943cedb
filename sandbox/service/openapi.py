"""An OpenAPI description of the native routes, written out: it is short and changes on purpose."""

from typing import Any

from rocstar.sandbox.types import DEFAULT_LIMITS, ExecResult, Limits, Status

_INTEGER, _NUMBER, _STRING, _BOOLEAN = ({"type": kind} for kind in ("integer", "number", "string", "boolean"))
_NULLABLE_INTEGER = {"type": ["integer", "null"]}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _schemas() -> dict[str, Any]:
    limits = {
        name: {"type": "number" if name == "wall_s" else "integer", "default": getattr(DEFAULT_LIMITS, name)}
        for name in Limits.__dataclass_fields__
    }
    request = {
        "code": _STRING,
        "stdin": {**_STRING, "default": ""},
        "flavour": {**_STRING, "default": "auto"},
        "seed": _NULLABLE_INTEGER,
        "limits": _ref("Limits"),
    }
    kinds = {
        **dict.fromkeys(("stdout", "stderr", "isolation", "tier"), _STRING),
        **dict.fromkeys(("stdout_truncated", "stderr_truncated"), _BOOLEAN),
        **dict.fromkeys(("wall_s", "cpu_s"), _NUMBER),
        **dict.fromkeys(("exit_code", "signal"), _NULLABLE_INTEGER),
        "status": {"enum": [str(status) for status in Status]},
        "value": {"type": ["string", "null"]},
        "peak_memory_bytes": _INTEGER,
    }
    result = {name: kinds.get(name, {}) for name in ExecResult.__dataclass_fields__}
    failure = {
        "kind": _STRING,
        "message": _STRING,
        "retryable": _BOOLEAN,
        "field": _STRING,
        "reason": _STRING,
    }
    return {
        "Limits": _object(limits),
        "Request": _object(request, "code"),
        "Run": _object({**request, "deadline_s": _NUMBER}, "code"),
        "Batch": _object(
            {
                "requests": {"type": "array", "items": _ref("Request"), "minItems": 1},
                "deadline_s": _NUMBER,
                "stream": _BOOLEAN,
            },
            "requests",
        ),
        "Session": _object({"flavour": _STRING, "limits": _ref("Limits"), "seed": _NULLABLE_INTEGER}),
        "Cell": _object({"code": _STRING, "wall_s": _NUMBER, "deadline_s": _NUMBER}, "code"),
        "SessionId": _object({"id": _STRING}, "id"),
        "Result": _object(result, *result),
        "Failure": _object({"error": _object(failure, "kind", "message", "retryable")}, "error"),
        "Outcomes": _object(
            {"results": {"type": "array", "items": {"oneOf": [_ref("Result"), _ref("Failure")]}}}, "results"
        ),
    }


def _post(summary: str, body: str | None, answer: str, *, status: int = 200) -> dict[str, Any]:
    def content(name: str) -> dict[str, Any]:
        return {"content": {"application/json": {"schema": _ref(name)}}}

    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {
            str(status): {"description": "done", **content(answer)},
            "default": {"description": "failed", **content("Failure")},
        },
    }
    if body is not None:
        operation["requestBody"] = {"required": True, **content(body)}
    return {"post": operation}


def document() -> dict[str, Any]:
    """The description, as a JSON value."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "rocstar sandbox", "version": "1"},
        "paths": {
            "/v1/run": _post("Run one program.", "Run", "Result"),
            "/v1/batch": _post(
                "Run many programs; outcomes come in order, or as they end.", "Batch", "Outcomes"
            ),
            "/v1/sessions": _post(
                "Open an interpreter that keeps its state.", "Session", "SessionId", status=201
            ),
            "/v1/sessions/{id}/run": _post("Run one cell.", "Cell", "Result"),
            "/v1/sessions/{id}/branch": _post("Go on twice from here.", None, "SessionId", status=201),
            "/v1/sessions/{id}": {
                "delete": {"summary": "End a session.", "responses": {"204": {"description": "ended"}}}
            },
        },
        "components": {"schemas": _schemas()},
    }
