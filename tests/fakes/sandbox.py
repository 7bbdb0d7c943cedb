"""A fake sandbox without processes, and results for it. Checked against tests/sandbox/recordings/.

fake = FakeSandbox({"print(1)": ok("1\\n"), "1/0": error("ZeroDivisionError: division by zero\\n")})
fake = FakeSandbox(lambda request: timeout() if "while" in request.code else ok())

Sessions use the same script for each cell; `fake.lose(session, "evicted")` ends an interpreter.
"""

import asyncio
import dataclasses
import json
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Self

from rocstar.sandbox.child.cell import MEMORY_EXIT
from rocstar.sandbox.types import (
    DEFAULT_LIMITS,
    Display,
    ExecRequest,
    ExecResult,
    Limits,
    OnOutput,
    SandboxError,
    SessionLost,
    Status,
    deadline_error,
)

Answer = ExecResult | SandboxError

SIGKILL, SIGSEGV, SIGSYS = 9, 11, 31


def _result(
    status: Status, *, exit_code: int | None = None, signal: int | None = None, **fields: str | None
) -> ExecResult:
    return ExecResult(
        status=status,
        exit_code=exit_code,
        signal=signal,
        stdout=fields.get("stdout") or "",
        stderr=fields.get("stderr") or "",
        stdout_truncated=False,
        stderr_truncated=False,
        value=fields.get("value"),
        wall_s=0.002,
        cpu_s=0.001,
        peak_memory_bytes=1 << 20,
        isolation="fake",
    )


def ok(stdout: str = "", *, value: str | None = None, stderr: str = "") -> ExecResult:
    return _result(Status.OK, exit_code=0, stdout=stdout, value=value, stderr=stderr)


def error(stderr: str = "", *, exit_code: int = 1, stdout: str = "") -> ExecResult:
    return _result(Status.ERROR, exit_code=exit_code, stdout=stdout, stderr=stderr)


def signaled(signal: int = SIGSEGV) -> ExecResult:
    return _result(Status.SIGNALED, signal=signal)


def timeout() -> ExecResult:
    return _result(Status.TIMEOUT, signal=SIGKILL)


def memory_limit(stderr: str = "MemoryError\n") -> ExecResult:
    return _result(Status.MEMORY_LIMIT, exit_code=MEMORY_EXIT, stderr=stderr)


def output_limit(stdout: str = "") -> ExecResult:
    return _result(Status.OUTPUT_LIMIT, signal=SIGKILL, stdout=stdout)


def denied() -> ExecResult:
    return _result(Status.DENIED, signal=SIGSYS)


def result_from_json(fields: Mapping[str, Any]) -> ExecResult:
    """The inverse of `ExecResult.to_json`."""
    files = {name: b64decode(text) for name, text in fields.get("files", {}).items()}
    displays = tuple(Display(one["mime"], b64decode(one["data"])) for one in fields.get("displays", ()))
    return ExecResult(**{**fields, "status": Status(fields["status"]), "files": files, "displays": displays})


@dataclass(eq=False)
class FakeSandbox:
    """Answers from a script, by the exact code or by a callable. requests: all requests, in order.

    A SandboxError in the script is raised. Unknown code is an error of the test and raises LookupError,
    unless `otherwise` is given."""

    script: Mapping[str, Answer] | Callable[[ExecRequest], Answer]
    _: KW_ONLY
    otherwise: Answer | None = None
    requests: list[ExecRequest] = field(default_factory=list)
    sessions: "list[FakeSession]" = field(default_factory=list)

    @classmethod
    def from_recordings(cls, path: Path) -> Self:
        """Replay recorded results of a pool (see tests/sandbox/record.py)."""
        cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
        return cls({case["code"]: result_from_json(case["result"]) for case in cases})

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        self.requests.append(request)
        await asyncio.sleep(0)  # yields to the event loop, as a pool does
        if deadline is not None and deadline <= asyncio.get_running_loop().time():
            raise deadline_error()
        answer = self._answer(request)
        if isinstance(answer, SandboxError):
            raise answer
        return answer

    async def run_batch(
        self, requests: Sequence[ExecRequest], *, deadline: float | None = None
    ) -> AsyncIterator[tuple[int, Answer]]:
        """Yield the last request's outcome first, to expose callers that rely on the order."""
        for index in reversed(range(len(requests))):
            try:
                yield index, await self.run(requests[index], deadline=deadline)
            except SandboxError as error:
                yield index, error

    async def open_session(
        self, *, flavour: str = "auto", limits: Limits = DEFAULT_LIMITS, seed: int | None = None, owner: str = ""
    ) -> "FakeSession":
        await asyncio.sleep(0)
        return self._add_session(ExecRequest(code="", flavour=flavour, limits=limits, seed=seed, owner=owner), [])

    def _add_session(self, template: ExecRequest, cells: list[str]) -> "FakeSession":
        session = FakeSession(self, f"fake-{len(self.sessions)}", template, cells)
        self.sessions.append(session)
        return session

    def lose(self, session: "FakeSession", reason: str) -> None:
        """End the interpreter: the next use of `session` raises SessionLost with this reason."""
        session.lost = reason

    def _answer(self, request: ExecRequest) -> Answer:
        if callable(self.script):
            return self.script(request)
        answer = self.script.get(request.code, self.otherwise)
        if answer is None:
            raise LookupError(f"the script of this FakeSandbox has no answer to {request.code!r}")
        return answer


@dataclass(eq=False)
class FakeSession:
    """A session of a FakeSandbox. `cells`: what ran in it, those before a branch included. `lost`: why it is
    gone, None while it lives."""

    sandbox: FakeSandbox
    id: str
    template: ExecRequest
    cells: list[str]
    lost: str | None = None
    ending: str = ""

    async def run(
        self,
        code: str,
        *,
        wall_s: float | None = None,
        deadline: float | None = None,
        files: Mapping[str, bytes] | None = None,
        fetch: Sequence[str] = (),
        displays: bool = False,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        self._check()
        limits = self.template.limits
        if wall_s is not None:
            limits = dataclasses.replace(limits, wall_s=wall_s)
        try:
            request = dataclasses.replace(
                self.template, code=code, limits=limits, files=files or {}, fetch=tuple(fetch), displays=displays
            )
            result = await self.sandbox.run(request, deadline=deadline)
        except SessionLost as loss:
            self.lost = loss.reason
            raise
        self.cells.append(code)
        if on_output is not None:
            for name, text in (("stdout", result.stdout), ("stderr", result.stderr)):
                if text:
                    on_output(name, text)
        if result.exit_code not in (0, 1, MEMORY_EXIT):  # it exited, crashed or was killed
            self.lost = "died"
        return result

    async def branch(self) -> "FakeSession":
        self._check()
        await asyncio.sleep(0)
        return self.sandbox._add_session(self.template, [*self.cells])

    async def close(self) -> None:
        self.lost = self.lost or "closed"

    def _check(self) -> None:
        if self.lost is not None:
            raise SessionLost(f"the session is gone: {self.lost}", reason=self.lost)
