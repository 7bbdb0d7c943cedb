"""JSON schemas of all bodies and answers, from the types and bounds that the decoders use."""

from typing import Any

from rocstar.sandbox.files import MAX_FILES_BYTES
from rocstar.sandbox.service.decode import AUTO, MAX_DEADLINE_S, Rules
from rocstar.sandbox.service.decode_code_judge import BATCH_TYPES, TYPES
from rocstar.sandbox.service.decode_sandbox_fusion import (
    DEFAULT_S,
    KERNELS,
    LANGUAGES,
    MAX_CELLS,
    MAX_FILES,
    default_s,
)
from rocstar.sandbox.types import ExecResult, Limits, Status

Schema = dict[str, Any]

INTEGER, NUMBER, STRING, BOOLEAN, NULL = (
    {"type": kind} for kind in ("integer", "number", "string", "boolean", "null")
)
REASONS = ("", "worker_timeout", "queue_timeout", "internal_error", "invalid_input")


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def nullable(schema: Schema) -> Schema:
    if "type" in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, NULL]}


def array(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def mapping(values: Schema, **more: Any) -> Schema:
    return {"type": "object", "additionalProperties": values, **more}


def closed(properties: dict[str, Schema], *required: str) -> Schema:
    """An object with these fields and no others."""
    return {**opened(properties, *required), "additionalProperties": False}


def opened(properties: dict[str, Schema], *required: str) -> Schema:
    """An object whose other fields are ignored."""
    return {"type": "object", "properties": properties, "required": list(required)}


def schemas(rules: Rules) -> dict[str, Schema]:
    """All of them by name, with the bounds of this service."""
    return {**_native(rules), **_code_judge(), **_sandbox_fusion(rules), **_operation()}


def _bounded(kind: Schema, bounds: tuple[Any, Any], **more: Any) -> Schema:
    return {**kind, "minimum": bounds[0], "maximum": bounds[1], **more}


def _native(rules: Rules) -> dict[str, Schema]:
    limits = {
        name: _bounded(
            NUMBER if name == "wall_s" else INTEGER,
            rules.bounds_of(name),
            default=getattr(rules.default_limits, name),
        )
        for name in Limits.__dataclass_fields__
    }
    seed = nullable({**INTEGER, "minimum": 0})
    deadline = nullable({**NUMBER, "exclusiveMinimum": 0, "maximum": MAX_DEADLINE_S})
    flavour = {"enum": [AUTO, *rules.flavours, None], "default": AUTO}
    request = {
        "code": STRING,
        "stdin": {**nullable(STRING), "default": ""},
        "flavour": flavour,
        "seed": seed,
        "limits": nullable(ref("Limits")),
    }
    failure = {**dict.fromkeys(("kind", "message", "field", "reason"), STRING), "retryable": BOOLEAN}
    outcome = {"oneOf": [ref("Result"), ref("Failure")]}
    return {
        "Limits": closed(limits),
        "Request": closed(request, "code"),
        "Run": closed({**request, "deadline_s": deadline}, "code"),
        "Batch": closed(
            {
                "requests": array(ref("Request"), minItems=1, maxItems=rules.max_calls_per_batch),
                "deadline_s": deadline,
                "stream": BOOLEAN,
            },
            "requests",
        ),
        "Session": closed({"flavour": flavour, "limits": nullable(ref("Limits")), "seed": seed}),
        "Cell": closed({"code": STRING, "wall_s": nullable(NUMBER), "deadline_s": deadline}, "code"),
        "SessionId": closed({"id": STRING}, "id"),
        "Result": closed(_result(), *ExecResult.__dataclass_fields__),
        "Failure": closed({"error": closed(failure, "kind", "message", "retryable")}, "error"),
        "Outcomes": closed({"results": array(outcome)}, "results"),
        "OutcomeLine": {**opened({"index": INTEGER}, "index"), "description": "one of Outcomes, per line"},
    }


def _result() -> dict[str, Schema]:
    kinds = {
        **dict.fromkeys(("stdout", "stderr", "isolation", "tier"), STRING),
        **dict.fromkeys(("stdout_truncated", "stderr_truncated"), BOOLEAN),
        **dict.fromkeys(("wall_s", "cpu_s"), NUMBER),
        **dict.fromkeys(("exit_code", "signal"), nullable(INTEGER)),
        "status": {"enum": [str(status) for status in Status]},
        "value": nullable(STRING),
        "peak_memory_bytes": INTEGER,
    }
    return {name: kinds[name] for name in ExecResult.__dataclass_fields__}


def _code_judge() -> dict[str, Schema]:
    submission: dict[str, Schema] = {
        "sub_id": nullable(STRING),
        "type": {"enum": list(TYPES)},
        "solution": STRING,
        "input": nullable(STRING),
        "expected_output": nullable(STRING),
        "options": nullable(mapping(STRING)),
    }
    judged = {"sub_id": STRING, "success": BOOLEAN, "run_success": BOOLEAN, "cost": NUMBER}
    output = {"stdout": nullable(STRING), "stderr": nullable(STRING)}
    reason: dict[str, Schema] = {"reason": {"enum": list(REASONS)}}
    batch: dict[str, Schema] = {
        "sub_id": nullable(STRING),
        "type": {"enum": list(BATCH_TYPES), "default": BATCH_TYPES[0]},
        "submissions": array(ref("Submission"), minItems=1),
    }
    answers: dict[str, dict[str, Schema]] = {
        "RunAnswer": {**judged, **output, **reason},
        "JudgeAnswer": {**judged, **reason},
    }
    batches = {
        f"{name}s": closed({"sub_id": STRING, "results": array(ref(name))}, "sub_id", "results")
        for name in answers
    }
    return {
        "Submission": opened(submission, "type", "solution"),
        "Submissions": opened(batch, "submissions"),
        **{name: closed(fields, *fields) for name, fields in answers.items()},
        **batches,
        "QueueStatus": closed({"queue": INTEGER, "num_workers": INTEGER}, "queue", "num_workers"),
    }


def _sandbox_fusion(rules: Rules) -> dict[str, Schema]:
    seconds = {
        name: _bounded(NUMBER, (0.001, rules.max_wall_s), default=default_s(name, rules))
        for name in DEFAULT_S
    }
    files = mapping(
        {**nullable(STRING), "contentEncoding": "base64"},
        maxProperties=MAX_FILES,
        description=f"name to content; together at most {MAX_FILES_BYTES} bytes",
    )
    common = {
        "files": files,
        "fetch_files": array(STRING, maxItems=MAX_FILES),
        "memory_limit_MB": _bounded(INTEGER, (-1, rules.max_memory_bytes >> 20), default=-1),
    }
    code: dict[str, Schema] = {
        "code": STRING,
        "language": {"enum": list(LANGUAGES)},
        "stdin": nullable(STRING),
        "compile_timeout": seconds["compile_timeout"],
        "run_timeout": seconds["run_timeout"],
        **common,
    }
    notebook: dict[str, Schema] = {
        "cells": array(STRING, maxItems=MAX_CELLS),
        "cell_timeout": _bounded(NUMBER, (0, rules.max_wall_s), default=0),
        "total_timeout": seconds["total_timeout"],
        "kernel": {"enum": list(KERNELS), "default": KERNELS[0]},
        **common,
    }
    command: dict[str, Schema] = {
        "status": {"enum": ["Finished", "TimeLimitExceeded", "Error"]},
        "execution_time": nullable(NUMBER),
        "return_code": nullable(INTEGER),
        "stdout": STRING,
        "stderr": STRING,
    }
    fault = {"ename": STRING, "evalue": STRING, "traceback": array(STRING)}
    cell: dict[str, Schema] = {
        "stdout": STRING,
        "stderr": STRING,
        "display": array(mapping(STRING)),
        "error": array(closed(fault, *fault)),
    }
    head: dict[str, Schema] = {"status": {"enum": ["Success", "Failed", "SandboxError"]}, "message": STRING}
    tail = {"executor_pod_name": NULL, "files": mapping(STRING)}
    code_answer: dict[str, Schema] = {
        **head,
        **dict.fromkeys(("compile_result", "run_result"), nullable(ref("Command"))),
        **tail,
    }
    notebook_answer: dict[str, Schema] = {
        **head,
        "driver": nullable(ref("Command")),
        "cells": array(ref("CellAnswer")),
        **tail,
    }
    return {
        "CodeRun": opened(code, "code", "language"),
        "Notebook": opened(notebook, "cells"),
        "Command": closed(command, *command),
        "CellAnswer": closed(cell, *cell),
        "CodeAnswer": closed(code_answer, *code_answer),
        "NotebookAnswer": closed(notebook_answer, *notebook_answer),
    }


def _operation() -> dict[str, Schema]:
    detail: dict[str, Schema] = {
        "type": STRING,
        "loc": array({"type": ["string", "integer"]}),
        "msg": STRING,
        "input": {},
    }
    return {
        "Pong": {"const": "pong"},
        "Healthy": closed({"status": {"const": "ok"}}, "status"),
        "Ready": closed({"ready": BOOLEAN, "reason": STRING}, "ready"),
        "Mistakes": closed({"detail": array(opened({**detail, "ctx": {}}, *detail))}, "detail"),
        "Refusal": closed({"detail": STRING}, "detail"),
    }
