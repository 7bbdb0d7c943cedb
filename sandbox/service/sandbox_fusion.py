"""SandboxFusion's dialect: /run_code and /run_jupyter, for Python, C++ and bash.

Files of a request, and those that it fetches, are the sandbox's own (`ExecRequest.files`, `fetch`). A session
runs the notebook.
"""

import asyncio
import base64
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from aiohttp import web

from rocstar.sandbox.child.import_scan import MAX_SCANNED
from rocstar.sandbox.pool.wire import NO_FILES, with_files
from rocstar.sandbox.service.answers import (
    CellAnswer,
    CellFault,
    CodeAnswer,
    Command,
    CommandStatus,
    NotebookAnswer,
)
from rocstar.sandbox.service.calls import Admission
from rocstar.sandbox.service.decode_sandbox_fusion import (
    OWN_FLAVOURS,
    CodeRun,
    decode_run_code,
    decode_run_jupyter,
)
from rocstar.sandbox.service.http import may_pass, send, to_json
from rocstar.sandbox.service.idempotency import HttpAnswer
from rocstar.sandbox.service.incoming import Incoming
from rocstar.sandbox.service.models import MAX_JSON_FILES_BYTES, NotebookBody
from rocstar.sandbox.service.outputs import HeldOutput, fitting
from rocstar.sandbox.service.request import HttpRequest
from rocstar.sandbox.service.routes import HttpRoute
from rocstar.sandbox.service.rules import Rules
from rocstar.sandbox.service.written import chars_of, written
from rocstar.sandbox.types import (
    Display,
    ExecRequest,
    ExecResult,
    Limits,
    SandboxError,
    Session,
    SessionLost,
    SessionSandbox,
    Status,
)

RETRYABLE_STATUS = 504
"""HTTP status of a failure of ours that may pass: the one that this API's clients retry."""

_NAME = re.compile(r"\w+(?:\.\w+)*")
MAX_NAME_CHARS = 200
MAX_TRACE_CHARS = 1 << 16
MAX_TRACE_LINES = 1000
"""What is told of a traceback, its end: a megabyte may have as many lines, each a text of its own."""

TRACEBACK = "Traceback (most recent call last):\n"


class SandboxFusion:
    """The handlers."""

    def __init__(
        self, admission: Admission, sandbox: SessionSandbox, rules: Rules, incoming: Incoming
    ) -> None:
        self._admission = admission
        self._sandbox = sandbox
        self._rules = rules
        self._incoming = incoming

    def routes(self) -> list[HttpRoute]:
        return [
            HttpRoute("POST", "/run_code", self.run_code),
            HttpRoute("POST", "/run_jupyter", self.run_jupyter),
            HttpRoute("GET", "/v1/ping", self.ping),
        ]

    async def ping(self, request: HttpRequest) -> web.Response:
        return web.Response(body=b'"pong"', content_type="application/json")

    async def run_code(self, request: HttpRequest) -> web.StreamResponse:
        body = await self._incoming.read(request)
        decode = partial(decode_run_code, rules=self._rules)
        run = await self._incoming.decoded(request.owner, body, decode)
        del body
        supported = ("python", *(name for name in OWN_FLAVOURS if name in self._rules.flavours))
        if run.language not in supported:
            message = f"the language {run.language!r} is not supported here, only {' and '.join(supported)}"
            return _json(_no_code(message))
        if run.language == "cpp" and (run.files or run.fetch_files):
            return _json(_no_code("files and fetch_files are not supported for cpp"))
        with HeldOutput(self._admission.held, request.owner) as held:
            try:
                result = fitting(await self._admission.run(self._request(run, request.owner)), held)
            except SandboxError as error:
                return _json(_no_code(str(error)), status=_status(error))
            held.take(chars_of(result) + sum(map(len, result.files.values())))
            if not result.files:
                return await _long_json(request, _code_answer(run, result), chars_of(result))
            answer = await asyncio.to_thread(_code_answer, run, result)
            return await _long_json(request, answer, chars_of(result) + sum(map(len, answer.files.values())))

    def _request(self, run: CodeRun, owner: str) -> ExecRequest:
        is_python = run.language not in OWN_FLAVOURS
        return ExecRequest(
            code=run.code,
            stdin=run.stdin,
            limits=run.limits,
            flavour=self._rules.choose(run.code) if is_python else run.language,
            files=run.files,
            fetch=tuple(run.fetch_files),
            owner=owner,
        )

    async def run_jupyter(self, request: HttpRequest) -> web.StreamResponse:
        body = await self._incoming.read(request)
        decode = partial(decode_run_jupyter, rules=self._rules)
        run, limits = await self._incoming.decoded(request.owner, body, decode)
        del body
        try:
            owner = request.owner
            with self._admission.admitted(owner), HeldOutput(self._admission.held, owner) as held:
                answer = await self._notebook(run, limits, owner, held)
                return await _long_json(request, answer, held.chars)
        except SandboxError as error:
            return _json(_no_notebook(error), status=_status(error))

    async def _notebook(
        self, run: NotebookBody, limits: Limits, owner: str, held: HeldOutput
    ) -> NotebookAnswer:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        flavour = self._rules.choose(beginning_of(run.cells))
        limits = with_files(limits, run.files)
        session = await self._sandbox.open_session(flavour=flavour, limits=limits, owner=owner)
        cells: list[CellAnswer] = []
        files: dict[str, str] = {}
        room, ran_s = MAX_JSON_FILES_BYTES, 0.0
        status: CommandStatus = "Finished"
        message = ""
        try:
            if run.files:
                await _must(session, files=run.files)
            for source in run.cells:
                left_s = run.total_timeout - ran_s  # what it waits for places is not its time
                result = None
                if left_s > 0:
                    wall_s = _cell_wall_s(run, left_s)
                    result = await session.run(source, wall_s=wall_s, displays=True)
                    ran_s += result.wall_s
                if result is None or result.status is Status.TIMEOUT:
                    status = "TimeLimitExceeded"
                    break
                result = held.cut(result)
                held.take(chars_of(result))
                shown, room = _fitting(() if held.full else result.displays, room)
                held.take(sum(len(one.data) for one in shown))
                cells.append(_cell(result, shown))
            if run.fetch_files and status == "Finished":
                fetched = await _must(session, fetch=run.fetch_files)
                files = {} if held.full else await asyncio.to_thread(_encoded, fetched.files)
                held.take(sum(map(len, files.values())))
        except SessionLost as loss:
            if loss.reason != "died":  # not by its cells, and nothing is left of them: all can run again
                raise SandboxError(str(loss), kind="session_lost", retryable=True) from None
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


def beginning_of(cells: Sequence[str]) -> str:
    """What is looked at to choose a flavour. All cells together may take a quarter of a gigabyte."""
    room, found = MAX_SCANNED, []
    for cell in cells:
        if room <= 0:
            break
        found.append(cell[:room])
        room -= len(cell) + 1
    return "\n".join(found)


def _cell_wall_s(run: NotebookBody, left_s: float) -> float:
    return max(0.001, min(left_s, run.cell_timeout or left_s))


async def _must(
    session: Session, *, files: Mapping[str, bytes] = NO_FILES, fetch: Sequence[str] = ()
) -> ExecResult:
    """Writes or takes files. Raises SandboxError if that fails: no files can be written here, say."""
    result = await session.run("", files=files, fetch=fetch)
    if result.status is not Status.OK:
        reason = result.stderr.strip().rpartition("\n")[2]
        raise SandboxError(f"the files could not be handled: {reason}", kind="files", retryable=False)
    return result


def _encoded(files: Mapping[str, bytes]) -> dict[str, str]:
    """Those that fit into one answer, the smallest first."""
    room, fitting = MAX_JSON_FILES_BYTES, {}
    for name, content in sorted(files.items(), key=lambda item: len(item[1])):
        room -= len(content)
        if room >= 0:
            fitting[name] = base64.b64encode(content).decode()
    return fitting


def _code_answer(run: CodeRun, result: ExecResult) -> CodeAnswer:
    compile_result: Command | None = None
    run_result: Command | None = _command(result)
    if run.language == "cpp":
        compiled = not (result.status is Status.ERROR and result.wall_s == 0.0)
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
        files=_encoded(result.files),
    )


def _command(result: ExecResult) -> Command:
    timed_out = result.status is Status.TIMEOUT
    return_code = result.exit_code if result.signal is None else -result.signal
    return Command(
        status="TimeLimitExceeded" if timed_out else "Finished",
        execution_time=result.wall_s,
        return_code=None if timed_out else return_code,
        stdout=result.stdout,
        stderr=result.stderr,
    )


def _fitting(displays: Sequence[Display], room: int) -> tuple[list[Display], int]:
    """Those that fit into what is left of the answer, and what is left then."""
    fitting = []
    for one in displays:
        if len(one.data) <= room:
            fitting.append(one)
            room -= len(one.data)
    return fitting, room


def _cell(result: ExecResult, displays: Sequence[Display]) -> CellAnswer:
    """A notebook's view of a result: a traceback is no part of standard error."""
    stderr, errors = result.stderr, []
    if result.status is not Status.OK:
        before, found, trace = stderr.rpartition(TRACEBACK)
        stderr = before if found else ""
        name, _, value = trace.strip().rpartition("\n")[2].partition(": ")
        shown = (found + trace)[-MAX_TRACE_CHARS:]
        if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
            name, value = str(result.status), trace[-MAX_TRACE_CHARS:]
        errors = [CellFault(ename=name, evalue=value, traceback=shown.splitlines()[-MAX_TRACE_LINES:])]
    display = [{one.mime: _text_of(one)} for one in displays]
    if result.value is not None:
        display.append({"text/plain": result.value})
    return CellAnswer(stdout=result.stdout, stderr=stderr, display=display, error=errors)


def _text_of(shown: Display) -> str:
    """As notebooks have it: base64 for a picture, the text itself for what is text."""
    is_text = shown.mime.startswith("text/") or shown.mime == "image/svg+xml"
    return shown.data.decode("utf-8", "replace") if is_text else base64.b64encode(shown.data).decode()


def _no_code(message: str) -> CodeAnswer:
    return CodeAnswer(status="SandboxError", message=message, compile_result=None, run_result=None)


def _no_notebook(error: SandboxError) -> NotebookAnswer:
    return NotebookAnswer(status="SandboxError", message=str(error), driver=None, cells=[])


def _status(error: SandboxError) -> int:
    """What has run all the same left nothing behind."""
    return RETRYABLE_STATUS if may_pass(error) or error.kind == "no_room" else 200


async def _long_json(request: HttpRequest, answer: Any, num_chars: int) -> web.StreamResponse:
    return await send(request, HttpAnswer(status=200, body=await written(answer, num_chars)))


def _json(answer: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=to_json(answer), status=status, content_type="application/json")
