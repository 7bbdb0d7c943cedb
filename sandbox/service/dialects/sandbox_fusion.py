"""The SandboxFusion dialect: /run_code and /run_jupyter, for Python, C++ and bash.

The files that a request sends and fetches are files of the sandbox (`ExecRequest.files`, `fetch`). A notebook
runs in a session.
"""

import asyncio
import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Any, Literal

from aiohttp import web
from msgspec import Meta, Struct

from rocstar.sandbox import files as program_files
from rocstar.sandbox import types
from rocstar.sandbox.child.import_scan import MAX_SCANNED
from rocstar.sandbox.http.bodies import BodyReader
from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.http.responses import json_response, send_json
from rocstar.sandbox.http.routes import HttpRequest, HttpRoute
from rocstar.sandbox.pool.wire import with_files
from rocstar.sandbox.service import results, validation
from rocstar.sandbox.service.admission import Admission

LANGUAGES = (
    *("python", "cpp", "nodejs", "go", "go_test", "java", "php", "csharp", "bash", "typescript", "sql"),
    *("rust", "cuda", "lua", "R", "perl", "D_ut", "ruby", "scala", "julia", "pytest", "junit"),
    *("kotlin_script", "jest", "verilog", "python_gpu", "lean", "swift", "racket"),
)

DEFAULT_S = {"compile_timeout": 10, "run_timeout": 10, "total_timeout": 45}
LEAST_S = 0.001
MAX_CELLS = 1000
MAX_FILES = 32
"""The maximum number of files that are sent, and of those that are fetched."""

MAX_GIVEN_BYTES = 32 << 20
"""The maximum size of all sent files; fetched files have MAX_JSON_FILES_BYTES."""

_ABOUT_FILES = Meta(max_length=MAX_FILES, description=f"name to content; together at most {MAX_GIVEN_BYTES} bytes")

FetchFiles = Annotated[list[str], Meta(max_length=MAX_FILES)]


class CodeRunBody(Struct, kw_only=True):
    """A program with its files."""

    compile_timeout: float
    run_timeout: float
    memory_limit_MB: int = -1
    code: str
    stdin: str | None = ""
    language: str
    files: Annotated[dict[str, bytes | None], _ABOUT_FILES] = {}
    fetch_files: FetchFiles = []


class NotebookBody(Struct, kw_only=True):
    """The cells of a notebook. `cell_timeout`: with 0 each cell may use the rest of `total_timeout`."""

    cells: Annotated[list[str], Meta(max_length=MAX_CELLS)]
    cell_timeout: float = 0
    total_timeout: float
    memory_limit_MB: int = -1
    kernel: Literal["python3"] = "python3"
    files: Annotated[dict[str, bytes], _ABOUT_FILES] = {}
    fetch_files: FetchFiles = []


def timeout_fields(service_limits: validation.ServiceLimits, *names: str) -> dict[str, Any]:
    """Time limits that a body need not name: that API's default, unless the service allows less."""
    kind = Annotated[float, Meta(ge=LEAST_S, le=service_limits.max_wall_s)]
    return {name: (kind, min(DEFAULT_S[name], service_limits.max_wall_s)) for name in names}


@lru_cache(maxsize=16)
def fusion_bodies(
    service_limits: validation.ServiceLimits,
) -> tuple[validation.BodyModel[CodeRunBody], validation.BodyModel[NotebookBody]]:
    """Return the models of both bodies, within the limits of one service."""
    memory = Annotated[int, Meta(ge=-1, le=service_limits.max_memory_bytes >> 20)]
    code_run = validation.narrow_model(
        CodeRunBody,
        language=Literal[LANGUAGES],
        memory_limit_MB=memory,
        **timeout_fields(service_limits, "compile_timeout", "run_timeout"),
    )
    notebook = validation.narrow_model(
        NotebookBody,
        cell_timeout=Annotated[float, Meta(ge=0, le=service_limits.max_wall_s)],
        memory_limit_MB=memory,
        **timeout_fields(service_limits, "total_timeout"),
    )
    return validation.BodyModel(code_run, validation.close_model(code_run)), validation.BodyModel(
        notebook, validation.close_model(notebook)
    )


FusionStatus = Literal["Success", "Failed", "SandboxError"]
CommandStatus = Literal["Finished", "TimeLimitExceeded", "Error"]


class Command(Struct, forbid_unknown_fields=True):
    """A command that was run."""

    status: CommandStatus
    execution_time: float | None
    return_code: int | None
    stdout: str
    stderr: str


class CellFault(Struct, forbid_unknown_fields=True):
    """An exception that a cell raised."""

    ename: str
    evalue: str
    traceback: list[str]


class CellAnswer(Struct, forbid_unknown_fields=True):
    """The result of a cell."""

    stdout: str
    stderr: str
    display: list[dict[str, str]]
    error: list[CellFault]


class CodeAnswer(Struct, kw_only=True, forbid_unknown_fields=True):
    """The result of a program."""

    status: FusionStatus
    message: str = ""
    compile_result: Command | None
    run_result: Command | None
    executor_pod_name: None = None
    files: dict[str, str] = {}


class NotebookAnswer(Struct, kw_only=True, forbid_unknown_fields=True):
    """The result of a notebook."""

    status: FusionStatus
    message: str = ""
    driver: Command | None
    cells: list[CellAnswer]
    executor_pod_name: None = None
    files: dict[str, str] = {}


OWN_FLAVOURS = ("cpp", "bash")
"""Languages that are flavours of the same name."""


def decode_run_code(
    body: bytes, service_limits: validation.ServiceLimits, owner: str = ""
) -> tuple[str, types.ExecRequest]:
    """Decode a body of /run_code. Return the language and the call, also for a language without a flavour."""
    model, _ = fusion_bodies(service_limits)
    run = validation.parse_body(body, model)
    files = {name: content for name, content in run.files.items() if content is not None}  # as that API does
    stdin = run.stdin or ""
    is_script = run.language not in OWN_FLAVOURS
    code = run.code + validation.SCRIPT_END if is_script else run.code
    _check_inputs({("code",): code, ("stdin",): stdin}, files, run.fetch_files)
    program = types.ExecRequest(
        code=code,
        stdin=stdin,
        limits=_to_limits(run.run_timeout, run, service_limits),
        flavour=service_limits.select_flavour(code) if is_script else run.language,
        files=files,
        fetch=tuple(run.fetch_files),
        owner=owner,
    )
    return run.language, program


def decode_run_jupyter(body: bytes, service_limits: validation.ServiceLimits) -> tuple[NotebookBody, types.Limits]:
    """A body of /run_jupyter, and the limits of its interpreter."""
    _, model = fusion_bodies(service_limits)
    run = validation.parse_body(body, model)
    cells = {("cells", index): cell for index, cell in enumerate(run.cells)}
    _check_inputs(cells, run.files, run.fetch_files)
    return run, _to_limits(run.cell_timeout or run.total_timeout, run, service_limits, cpu_s=run.total_timeout)


def _to_limits(
    wall_s: float, run: CodeRunBody | NotebookBody, service_limits: validation.ServiceLimits, *, cpu_s: float = 0.0
) -> types.Limits:
    defaults = service_limits.default_limits
    memory_mb = run.memory_limit_MB
    return types.Limits(
        wall_s=max(LEAST_S, float(wall_s)),
        cpu_s=min(86_400, int(max(wall_s, cpu_s)) + 1),
        memory_bytes=memory_mb << 20 if memory_mb > 0 else defaults.memory_bytes,
        output_bytes=defaults.output_bytes,
        file_bytes=defaults.file_bytes,
        files=defaults.files,
    )


def _check_inputs(texts: Mapping[Any, str], files: Mapping[str, bytes], fetch: Sequence[str]) -> None:
    """Raises SchemaError with the errors of the texts, by their locations, and of both kinds of files."""
    found = []
    for loc, text in texts.items():
        try:
            validation.check_text(text, ".".join(map(str, loc)))
        except RequestError as error:
            found.append(validation.field_error(str(error), *loc))
    faults = {name: why for name in files if (why := program_files.fault_of(name))}
    found += [validation.field_error(why, "files", name) for name, why in faults.items()]
    if name := program_files.clash({name: files[name] for name in files if name not in faults}):
        found.append(validation.field_error("it is a directory of another file", "files", name))
    total, most = sum(map(len, files.values())), MAX_GIVEN_BYTES
    if total > most:
        largest = max(files, key=lambda name: len(files[name]))
        msg = f"the files have {total} bytes together; at most {most} bytes are taken"
        ctx = {"actual_length": total, "max_length": most}
        found.append(validation.FieldError(kind="too_long", loc=("files", largest), msg=msg, value=None, ctx=ctx))
    unfetchable = (program_files.fault_of(name, fetched=True) for name in fetch)
    found += [validation.field_error(why, "fetch_files") for why in unfetchable if why]
    validation.raise_field_errors(found)


RETRYABLE_STATUS = 504
"""HTTP status of a failure of ours that may pass: the one that this API's clients retry."""

_NAME = re.compile(r"\w+(?:\.\w+)*")
MAX_NAME_CHARS = 200
MAX_TRACE_CHARS = 1 << 16
MAX_TRACE_LINES = 1000
"""The maximum number of lines of a traceback, from its end: a megabyte may have as many lines."""

TRACEBACK = "Traceback (most recent call last):\n"


@dataclass(eq=False)
class SandboxFusion:
    """The handlers."""

    admission: Admission
    sandbox: types.SessionSandbox
    service_limits: validation.ServiceLimits
    body_reader: BodyReader

    def routes(self) -> list[HttpRoute]:
        return [HttpRoute("POST", "/run_code", self.run_code), HttpRoute("POST", "/run_jupyter", self.run_jupyter)]

    async def run_code(self, request: HttpRequest) -> web.StreamResponse:
        decode = partial(decode_run_code, service_limits=self.service_limits, owner=request.owner)
        language, program = await self.body_reader.parse(request, decode)
        supported = ("python", *(name for name in OWN_FLAVOURS if name in self.service_limits.flavours))
        if language not in supported:
            message = f"the language {language!r} is not supported here, only {' and '.join(supported)}"
            return json_response(_code_failure(message))
        if language == "cpp" and (program.files or program.fetch):
            return json_response(_code_failure("files and fetch_files are not supported for cpp"))
        with results.OutputBuffer(self.admission.held, request.owner) as held:
            try:
                result = results.fit_to_budget(await self.admission.run(program), held)
            except types.SandboxError as error:
                return json_response(_code_failure(str(error)), status=_failure_status(error))
            held.take(results.count_chars(result) + sum(map(len, result.files.values())))
            if not result.files:
                return await send_json(request, _to_code_answer(language, result), results.count_chars(result))
            answer = await asyncio.to_thread(_to_code_answer, language, result)
            return await send_json(request, answer, results.count_chars(result) + sum(map(len, answer.files.values())))

    async def run_jupyter(self, request: HttpRequest) -> web.StreamResponse:
        decode = partial(decode_run_jupyter, service_limits=self.service_limits)
        run, limits = await self.body_reader.parse(request, decode)
        try:
            owner = request.owner
            with self.admission.admitted(owner), results.OutputBuffer(self.admission.held, owner) as held:
                answer = await self._notebook(run, limits, owner, held)
                return await send_json(request, answer, held.chars)
        except types.SandboxError as error:
            failure = NotebookAnswer(status="SandboxError", message=str(error), driver=None, cells=[])
            return json_response(failure, status=_failure_status(error))

    async def _notebook(
        self, run: NotebookBody, limits: types.Limits, owner: str, held: results.OutputBuffer
    ) -> NotebookAnswer:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        flavour = self.service_limits.select_flavour(scanned_source(run.cells))
        limits = with_files(limits, run.files)
        session = await self.sandbox.open_session(flavour=flavour, limits=limits, owner=owner)
        cells: list[CellAnswer] = []
        files: dict[str, str] = {}
        room, ran_s = results.MAX_JSON_FILES_BYTES, 0.0
        status: CommandStatus = "Finished"
        message = ""
        try:
            if run.files:
                await _run_file_cell(session, files=run.files)
            for source in run.cells:
                left_s = run.total_timeout - ran_s  # waiting for a slot does not count
                result = None
                if left_s > 0:
                    wall_s = max(LEAST_S, min(left_s, run.cell_timeout or left_s))
                    result = await session.run(source, wall_s=wall_s, displays=True)
                    ran_s += result.wall_s
                if result is None or result.status is types.Status.TIMEOUT:
                    status = "TimeLimitExceeded"
                    break
                result = held.truncate(result)
                held.take(results.count_chars(result))
                shown = []  # the displays that fit into the rest of the response
                for one in () if held.full else result.displays:
                    if len(one.data) <= room:
                        shown.append(one)
                        room -= len(one.data)
                        held.take(len(one.data))
                cells.append(_to_cell_answer(result, shown))
            if run.fetch_files and status == "Finished":
                fetched = await _run_file_cell(session, fetch=run.fetch_files)
                files = {} if held.full else await asyncio.to_thread(_encode_files, fetched.files)
                held.take(sum(map(len, files.values())))
        except types.SessionLost as loss:
            if loss.reason != "died":  # not by its cells, and nothing is left of them: all can run again
                raise types.SandboxError(str(loss), kind="session_lost", retryable=True) from None
            status, message = "Error", f"the interpreter is gone: {loss.reason}"
        finally:
            await session.close()
        driver = Command(
            status=status,
            execution_time=loop.time() - start_s,
            return_code=0 if status == "Finished" else None,
            stdout="",
            stderr=message,
        )
        return NotebookAnswer(
            status="Success" if status == "Finished" else "Failed", driver=driver, cells=cells, files=files
        )


def scanned_source(cells: Sequence[str]) -> str:
    """Return the source to select a flavour by. All cells together may have a quarter of a gigabyte."""
    room, found = MAX_SCANNED, []
    for cell in cells:
        if room <= 0:
            break
        found.append(cell[:room])
        room -= len(cell) + 1
    return "\n".join(found)


async def _run_file_cell(
    session: types.Session, *, files: Mapping[str, bytes] | None = None, fetch: Sequence[str] = ()
) -> types.ExecResult:
    """Writes or takes files. Raises SandboxError if that fails: no files can be written here, say."""
    result = await session.run("", files=files, fetch=fetch)
    if result.status is not types.Status.OK:
        reason = result.stderr.strip().rpartition("\n")[2]
        raise types.SandboxError(f"the files could not be handled: {reason}", kind="files", retryable=False)
    return result


def _encode_files(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the files that fit into one response as base64, the smallest first."""
    room, encoded = results.MAX_JSON_FILES_BYTES, {}
    for name, content in sorted(files.items(), key=lambda item: len(item[1])):
        room -= len(content)
        if room >= 0:
            encoded[name] = base64.b64encode(content).decode()
    return encoded


def _to_code_answer(language: str, result: types.ExecResult) -> CodeAnswer:
    compile_result: Command | None = None
    timed_out = result.status is types.Status.TIMEOUT
    return_code = result.exit_code if result.signal is None else -result.signal
    run_result: Command | None = Command(
        status="TimeLimitExceeded" if timed_out else "Finished",
        execution_time=result.wall_s,
        return_code=None if timed_out else return_code,
        stdout=result.stdout,
        stderr=result.stderr,
    )
    if language == "cpp":
        compiled = not (result.status is types.Status.ERROR and result.wall_s == 0.0)
        compile_result = Command(
            status="Finished",
            execution_time=None,
            return_code=0 if compiled else 1,
            stdout="",
            stderr="" if compiled else result.stderr,
        )
        if not compiled:
            run_result = None
    return CodeAnswer(
        status="Success" if run_result is not None and run_result.return_code == 0 else "Failed",
        compile_result=compile_result,
        run_result=run_result,
        files=_encode_files(result.files),
    )


def _to_cell_answer(result: types.ExecResult, displays: Sequence[types.Display]) -> CellAnswer:
    """Return the result in the format of a notebook, where the traceback is not part of stderr."""
    stderr, errors = result.stderr, []
    if result.status is not types.Status.OK:
        before, found, trace = stderr.rpartition(TRACEBACK)
        stderr = before if found else ""
        name, _, value = trace.strip().rpartition("\n")[2].partition(": ")
        shown = (found + trace)[-MAX_TRACE_CHARS:]
        if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
            name, value = str(result.status), trace[-MAX_TRACE_CHARS:]
        errors = [CellFault(ename=name, evalue=value, traceback=shown.splitlines()[-MAX_TRACE_LINES:])]
    display = []
    for one in displays:
        is_text = one.mime.startswith("text/") or one.mime == "image/svg+xml"
        text = one.data.decode("utf-8", "replace") if is_text else base64.b64encode(one.data).decode()
        display.append({one.mime: text})
    if result.value is not None:
        display.append({"text/plain": result.value})
    return CellAnswer(stdout=result.stdout, stderr=stderr, display=display, error=errors)


def _code_failure(message: str) -> CodeAnswer:
    return CodeAnswer(status="SandboxError", message=message, compile_result=None, run_result=None)


def _failure_status(error: types.SandboxError) -> int:
    """Return the status for a failure. A call that ran but lost its files can be retried."""
    return RETRYABLE_STATUS if results.is_retryable(error) or error.kind == "no_room" else 200
