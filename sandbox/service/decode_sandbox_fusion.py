"""Bodies of SandboxFusion's dialect to typed requests. Pure; field names are that API's."""

import base64
import binascii
from dataclasses import dataclass
from typing import Any

from rocstar.sandbox import files as program_files
from rocstar.sandbox.service.decode import Rules, check_text
from rocstar.sandbox.service.errors import Refused
from rocstar.sandbox.service.schema import Details, parse_body
from rocstar.sandbox.types import Limits

LANGUAGES = (
    *(
        "python",
        "cpp",
        "nodejs",
        "go",
        "go_test",
        "java",
        "php",
        "csharp",
        "bash",
        "typescript",
        "sql",
        "rust",
    ),
    *(
        "cuda",
        "lua",
        "R",
        "perl",
        "D_ut",
        "ruby",
        "scala",
        "julia",
        "pytest",
        "junit",
        "kotlin_script",
        "jest",
    ),
    *("verilog", "python_gpu", "lean", "swift", "racket"),
)
KERNELS = ("python3",)
DEFAULT_S = {"compile_timeout": 10, "run_timeout": 10, "total_timeout": 45}
MAX_CELLS = 1000
MAX_FILES = 32
"""Given and fetched; how large they may be together is `files.MAX_FILES_BYTES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRun:
    """A body of /run_code. files: name to bytes, to exist before the run. fetch_files: names to send back."""

    code: str
    language: str
    stdin: str
    limits: Limits
    files: dict[str, bytes]
    fetch_files: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class JupyterRun:
    """A body of /run_jupyter. cell_timeout_s: 0 leaves each cell what is left of total_timeout_s."""

    cells: list[str]
    cell_timeout_s: float
    total_timeout_s: float
    limits: Limits
    files: dict[str, bytes]
    fetch_files: list[str]


def decode_run_code(body: bytes, rules: Rules) -> CodeRun:
    raw = parse_body(body)
    details = Details()
    if not details.is_object(raw, ()):
        details.raise_if_any()
    _number(details, raw, "compile_timeout", rules)
    _number(details, raw, "run_timeout", rules)
    _memory(details, raw, rules)
    _required_text(details, raw, "code")
    details.text(raw.get("stdin"), ("stdin",), nullable=True)
    if "language" in raw:
        details.literal(raw["language"], ("language",), LANGUAGES)
    else:
        details.missing(("language",), raw)
    details.mapping(raw.get("files", {}), ("files",), values_nullable=True)
    details.texts(raw.get("fetch_files", []), ("fetch_files",))
    details.raise_if_any()
    _text(details, raw["code"], "code")
    _text(details, raw.get("stdin") or "", "stdin")
    files = _files(details, raw.get("files", {}))
    details.raise_if_any()
    return CodeRun(
        code=raw["code"],
        language=raw["language"],
        stdin=raw.get("stdin") or "",
        limits=_limits(raw.get("run_timeout", default_s("run_timeout", rules)), raw, rules),
        files=files,
        fetch_files=_names(details, raw.get("fetch_files", [])),
    )


def decode_run_jupyter(body: bytes, rules: Rules) -> JupyterRun:
    raw = parse_body(body)
    details = Details()
    if not details.is_object(raw, ()):
        details.raise_if_any()
    if "cells" in raw:
        details.texts(raw["cells"], ("cells",))
    else:
        details.missing(("cells",), raw)
    details.number(raw.get("cell_timeout", 0), ("cell_timeout",), low=0, high=rules.max_wall_s)
    _number(details, raw, "total_timeout", rules)
    _memory(details, raw, rules)
    details.literal(raw.get("kernel", "python3"), ("kernel",), KERNELS)
    details.mapping(raw.get("files", {}), ("files",))
    details.texts(raw.get("fetch_files", []), ("fetch_files",))
    details.raise_if_any()
    if len(raw["cells"]) > MAX_CELLS:
        msg = f"List should have at most {MAX_CELLS} items after validation, not {len(raw['cells'])}"
        details.add("too_long", ("cells",), msg, None, field_type="List", max_length=MAX_CELLS)
    for index, cell in enumerate(raw["cells"]):
        _text(details, cell, "cells", index)
    files = _files(details, raw.get("files", {}))
    details.raise_if_any()
    total_s = float(raw.get("total_timeout", default_s("total_timeout", rules)))
    return JupyterRun(
        cells=raw["cells"],
        cell_timeout_s=float(raw.get("cell_timeout", 0)),
        total_timeout_s=total_s,
        limits=_limits(raw.get("cell_timeout", 0) or total_s, raw, rules, cpu_s=total_s),
        files=files,
        fetch_files=_names(details, raw.get("fetch_files", [])),
    )


def _number(details: Details, raw: dict[str, Any], name: str, rules: Rules) -> None:
    value = raw.get(name, default_s(name, rules))
    details.number(value, (name,), low=0.001, high=rules.max_wall_s)


def default_s(name: str, rules: Rules) -> float:
    """Of a time limit that a body does not name: that API's, unless the service allows less."""
    return min(DEFAULT_S[name], rules.max_wall_s)


def _memory(details: Details, raw: dict[str, Any], rules: Rules) -> None:
    name = "memory_limit_MB"
    details.number(raw.get(name, -1), (name,), low=-1, high=rules.max_memory_bytes >> 20, whole=True)


def _required_text(details: Details, raw: dict[str, Any], name: str) -> None:
    if name in raw:
        details.text(raw[name], (name,))
    else:
        details.missing((name,), raw)


def _text(details: Details, text: str, *loc: str | int) -> None:
    try:
        check_text(text, ".".join(map(str, loc)))
    except Refused as refusal:
        details.add("value_error", loc, str(refusal), None)


def _limits(wall_s: float, raw: dict[str, Any], rules: Rules, *, cpu_s: float = 0.0) -> Limits:
    defaults = rules.default_limits
    memory_mb = raw.get("memory_limit_MB", -1)
    return Limits(
        wall_s=max(0.001, float(wall_s)),
        cpu_s=min(86_400, int(max(wall_s, cpu_s)) + 1),
        memory_bytes=memory_mb << 20 if memory_mb > 0 else defaults.memory_bytes,
        output_bytes=defaults.output_bytes,
        file_bytes=defaults.file_bytes,
    )


def _files(details: Details, raw: dict[str, str | None]) -> dict[str, bytes]:
    files = {}
    if len(raw) > MAX_FILES:
        msg = f"Dictionary should have at most {MAX_FILES} items after validation, not {len(raw)}"
        details.add("too_long", ("files",), msg, None, field_type="Dictionary", max_length=MAX_FILES)
        return {}
    for name, text in raw.items():
        if text is None:  # that API skips them
            continue
        if fault := program_files.fault_of(name):
            details.add("value_error", ("files", name), fault, None)
            continue
        try:
            files[name] = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            details.add("value_error", ("files", name), "the content is not base64", None)
    if name := program_files.clash(files):
        details.add("value_error", ("files", name), "it is a directory of another file", None)
    _check_size(details, files)
    return files


def _check_size(details: Details, files: dict[str, bytes]) -> None:
    total, most = sum(map(len, files.values())), program_files.MAX_FILES_BYTES
    if total > most:
        largest = max(files, key=lambda name: len(files[name]))
        msg = f"the files have {total} bytes together; at most {most} bytes are taken"
        details.add("too_long", ("files", largest), msg, None, actual_length=total, max_length=most)


def _names(details: Details, names: list[str]) -> list[str]:
    if len(names) > MAX_FILES:
        msg = f"List should have at most {MAX_FILES} items after validation, not {len(names)}"
        details.add("too_long", ("fetch_files",), msg, None, field_type="List", max_length=MAX_FILES)
    for name in names:
        if fault := program_files.fault_of(name):
            details.add("value_error", ("fetch_files",), fault, None)
    details.raise_if_any()
    return names
