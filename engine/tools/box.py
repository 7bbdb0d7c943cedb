"""The tools of an agent, called by name: dispatch, refusals and limits of a call.

    ToolBox.open -> Tools of one trajectory
    parse_tool_calls -> Tools.execute -> the tool of that name -> ToolOutput -> ToolResult

The trajectory waits for all calls of a turn. Calls run concurrently, except those of a tool that is not
`parallel` (cells of an interpreter). A call that exceeds its time is a `timeout` for the policy. A failure
that the policy did not cause is raised and makes the trajectory Failed.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from rocstar.engine.tools.tool import BadArguments, Tool, ToolContext, ToolError, ToolFailure, ToolOutput
from rocstar.engine.types import Span, ToolCall, ToolResult
from rocstar.sandbox.types import Sandbox, SandboxError, SessionSandbox, Status

T = TypeVar("T")
CLOSE_TIMEOUT_S = 10.0
BRANCH_TIMEOUT_S = 30.0
GRACE_S = 1.0
"""How long a cancelled call may take to end."""
LATE_S = 0.1
"""A deadline noticed so much later says that our own loop was blocked, which is no verdict on the tool."""
MAX_TEXT_CHARS = 1 << 20
"""The longest output of a call, as of a program. It protects memory; text for the policy is cut in tokens."""


class Tools(Protocol):
    """The tools of one trajectory."""

    async def execute(self, calls: Sequence[ToolCall], *, turn: int, deadline: float | None) -> tuple[ToolResult, ...]:
        """Results in the order of the calls, which are those of the `turn`-th turn, counted from 1."""

    def branch(self, *, seed: int) -> AbstractAsyncContextManager[Tools] | None:
        """Return the tools of a branch, to be entered while no call runs; None if a session cannot be copied.

        `seed` is the branch's, as of `ToolBox.open`.
        """
        return None


class ToolBox(Protocol):
    """Where every trajectory gets its tools."""

    def open(self, *, seed: int) -> AbstractAsyncContextManager[Tools]:
        """`seed` fixes the random modules of all programs of the trajectory. Resources are released on
        exit."""


@dataclass(slots=True, kw_only=True)
class Dispatcher:
    """Any number of tools in one box. Each call goes to the tool of its name.

    Args:
        tools: in the order in which the prompt shows them.
        sandbox: what runs their programs; None until it is there.
        max_parallel_calls: of one turn, for all tools; those beyond are refused.
        timeout_s: seconds of a call of a tool that has no limit of its own.

    Raises:
        ValueError: two tools have one name.
    """

    tools: Sequence[Tool]
    sandbox: Sandbox | SessionSandbox | None = None
    max_parallel_calls: int = 4
    timeout_s: float = 4.0
    _by_name: dict[str, Tool] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._by_name = {}
        for tool in self.tools:
            for name in sorted(tool.names):
                if name in self._by_name:
                    raise ValueError(f"two tools are called {name!r}")
                self._by_name[name] = tool

    @property
    def schemas(self) -> list[Mapping[str, Any]]:
        """Return their descriptions for the prompt."""
        return [tool.schema for tool in self.tools]

    @asynccontextmanager
    async def open(self, *, seed: int) -> AsyncIterator[Tools]:
        async with _Opened(self, seed) as opened:
            yield opened

    def read(self, call: ToolCall, index: int) -> _Accepted | ToolResult:
        """The `index`-th call of a turn with its tool, or the refusal the policy reads."""
        if call.malformed is not None or call.arguments is None or call.name is None:
            return _refuse("malformed_call", f"Failed to decode tool call: {call.malformed}")
        if index >= self.max_parallel_calls:
            return _refuse("too_many_calls", f"Only {self.max_parallel_calls} tool calls are executed per turn")
        tool = self._by_name.get(call.name)
        if tool is None:
            known = ", ".join(repr(tool.name) for tool in self.tools)
            which = "the tools are" if len(self.tools) > 1 else "the tool is"
            return _refuse("unknown_tool", f"Unknown tool {call.name!r}; {which} {known}")
        try:
            arguments = tool.read(call.arguments)
        except ToolError as error:
            return _refuse("bad_arguments", str(error))
        except Exception as error:  # user code: whatever a tool raises is its failure
            if failure := _failure(tool, error):
                raise failure from error
            raise
        return _Accepted(tool=tool, index=index, arguments=arguments)


@dataclass(slots=True, kw_only=True)
class _Accepted:
    """A call that its tool will answer."""

    tool: Tool
    index: int
    arguments: Mapping[str, Any]


class _Opened(Tools):
    """The tools of one trajectory and their sessions, which end with the block."""

    def __init__(self, box: Dispatcher, seed: int) -> None:
        self._box, self._seed = box, seed
        self._opened = asyncio.get_running_loop().time()
        self._sessions: dict[str, tuple[Tool, Any]] = {}

    async def __aenter__(self) -> _Opened:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failure = await self.close()
        if failure is not None and error is None:  # else the error that ended the trajectory is raised
            raise failure

    def branch(self, *, seed: int) -> AbstractAsyncContextManager[Tools] | None:
        return self._branched(seed) if all(tool.can_branch for tool, _ in self._sessions.values()) else None

    @asynccontextmanager
    async def _branched(self, seed: int) -> AsyncIterator[Tools]:
        async with _Opened(self._box, seed) as other:
            for name, (tool, session) in list(self._sessions.items()):  # a parent whose clock ends closes its own
                other._sessions[name] = (tool, await _copied(tool, session))
            yield other

    async def execute(self, calls: Sequence[ToolCall], *, turn: int, deadline: float | None) -> tuple[ToolResult, ...]:
        seed = self._seed + 64 * turn
        if len(calls) == 1:  # nearly always
            read = self._box.read(calls[0], 0)
            if isinstance(read, ToolResult):
                return (read,)
            return (await self._call(read, await self._session(read.tool, deadline), seed, deadline),)
        results: dict[int, ToolResult] = {}
        by_tool: dict[str, list[_Accepted]] = {}
        for index, call in enumerate(calls):
            read = self._box.read(call, index)
            if isinstance(read, ToolResult):
                results[index] = read
            else:
                by_tool.setdefault(read.tool.shared or read.tool.name, []).append(read)
        for answered in await _together([self._run(accepted, seed, deadline) for accepted in by_tool.values()]):
            results |= answered
        return tuple(results[index] for index in range(len(calls)))

    async def _run(self, calls: Sequence[_Accepted], seed: int, deadline: float | None) -> dict[int, ToolResult]:
        """The calls of a turn that go to one tool, or to tools of one session, together or one after the other."""
        tool = calls[0].tool
        session = await self._session(tool, deadline)
        if tool.parallel:
            results = await _together([self._call(call, session, seed + call.index, deadline) for call in calls])
        else:
            results = [await self._call(call, session, seed + call.index, deadline) for call in calls]
        return {call.index: result for call, result in zip(calls, results, strict=True)}

    async def _session(self, tool: Tool, deadline: float | None) -> Any:
        name = tool.shared or tool.name
        if name not in self._sessions:
            until = self._until(tool, deadline)
            context = ToolContext(seed=self._seed, deadline=until, sandbox=self._box.sandbox)
            try:
                session = await _call_until_deadline(tool, tool.open(context), until)
            except ToolError as error:
                raise ToolFailure(f"{tool.name}: its session was not opened: {error}") from error
            except _Expired:
                _raise_if_passed(deadline)
                raise ToolFailure(f"{tool.name}: its session was not opened in time") from None
            self._sessions[name] = (tool, session)
        return self._sessions[name][1]

    async def _call(self, call: _Accepted, session: Any, seed: int, deadline: float | None) -> ToolResult:
        loop = asyncio.get_running_loop()
        start_s = loop.time() - self._opened
        result = await self._answered(call, session, seed, deadline)
        return replace(result, ran=Span(start_s, loop.time() - self._opened))

    async def _answered(self, call: _Accepted, session: Any, seed: int, deadline: float | None) -> ToolResult:
        tool, until = call.tool, self._until(call.tool, deadline)
        context = ToolContext(seed=seed, deadline=until, sandbox=self._box.sandbox, session=session)
        try:
            output: object = await _call_until_deadline(tool, tool.call(call.arguments, context), until)
        except ToolError as error:
            status = "bad_arguments" if isinstance(error, BadArguments) else Status.ERROR.value
            return _refuse(status, str(error))
        except _Expired:
            _raise_if_passed(deadline)
            return _refuse(Status.TIMEOUT.value, "TimeoutError: the tool exceeded its time limit")
        if not isinstance(output, ToolOutput):
            what = f"call returned {type(output).__name__}, not a ToolOutput"
            raise ToolFailure(f"{tool.name}: {what}", retryable=False)
        return _to_result(output)

    def _until(self, tool: Tool, deadline: float | None) -> float | None:
        """When a call of the tool that begins now is over at the latest."""
        if tool.keeps_deadline:
            return deadline
        limit_s = self._box.timeout_s if tool.timeout_s is None else tool.timeout_s
        own = asyncio.get_running_loop().time() + limit_s
        return own if deadline is None else min(own, deadline)

    async def close(self) -> ToolFailure | None:
        """End every session; the first failure of those there were."""
        failure = None
        while self._sessions:
            _, (tool, session) = self._sessions.popitem()
            until = asyncio.get_running_loop().time() + CLOSE_TIMEOUT_S
            try:
                await _call_until_deadline(tool, tool.close(session), until)
            except (ToolError, ToolFailure, SandboxError, _Expired) as error:
                failure = ToolFailure(f"{tool.name}: its session was not closed: {error!r}")
        return failure


async def _copied(tool: Tool, session: Any) -> Any:
    """Return the session of a branch."""
    if tool.branch is None:
        return session  # there is none
    until = asyncio.get_running_loop().time() + BRANCH_TIMEOUT_S
    try:
        return await _run_until(tool, tool.branch(session), until)
    except (ToolFailure, SandboxError):
        raise
    except _Expired:
        raise ToolFailure(f"{tool.name}: its session was not copied in {BRANCH_TIMEOUT_S:g} s") from None
    except Exception as error:  # user code: whatever a tool raises is its failure
        raise ToolFailure(f"{tool.name}: its session was not copied: {error!r}") from error


class _Expired(Exception):
    """A tool was not done in time."""


async def _call_until_deadline(tool: Tool, work: Coroutine[Any, Any, T], until: float | None) -> T:
    """Return the result of the work. Raise `_Expired` after the time limit, when the work is cancelled."""
    try:
        if tool.keeps_deadline or until is None:
            return await work
        return await _run_until(tool, work, until)
    except Exception as error:  # user code: whatever a tool raises is its failure
        if failure := _failure(tool, error):
            raise failure from error
        raise


async def _run_until(tool: Tool, work: Coroutine[Any, Any, T], until: float) -> T:
    """The same, in a task that is cancelled when its time is over."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=until - loop.time())
        late_s = loop.time() - until
        if not task.done() and late_s > LATE_S:
            await asyncio.wait({task}, timeout=late_s)
        if task.done():
            if task.cancelled():  # by itself: as its result that would pass for the end of the trajectory
                raise ToolFailure(f"{tool.name}: it cancelled its own call", retryable=False)
            return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_S)
    if not task.done():
        raise ToolFailure(f"{tool.name}: it does not end when it is cancelled", retryable=False)
    if not task.cancelled():
        task.exception()  # log it: it came too late for an answer
    raise _Expired


def _raise_if_passed(deadline: float | None) -> None:
    """The trajectory's own deadline is no timeout of a tool."""
    if deadline is not None and asyncio.get_running_loop().time() >= deadline:
        raise TimeoutError


async def _together(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all, in order; the first failure ends the others."""
    if len(works) == 1:  # no task of its own
        return [await works[0]]
    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(work) for work in works]
    except ExceptionGroup as failures:
        # One failure of ours is enough to lose the trajectory: report it as itself, not as a group.
        raise failures.exceptions[0] from None
    return [task.result() for task in running]


def _failure(tool: Tool, error: Exception) -> ToolFailure | None:
    """Return the exception to raise for a tool's exception; None for an allowed one."""
    passes = (ToolError, ToolFailure, SandboxError, _Expired)
    # The deadline of the trajectory: a tool that keeps it may say so.
    if isinstance(error, passes) or (tool.keeps_deadline and isinstance(error, TimeoutError)):
        return None
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return ToolFailure(f"{tool.name}: {type(error).__name__}: {error}{where}", retryable=False)


def _to_result(output: ToolOutput) -> ToolResult:
    if len(output.text) > MAX_TEXT_CHARS:
        return _refuse(Status.OUTPUT_LIMIT.value, "OutputLimitError: the tool returned too much")
    status = Status(output.status)
    return ToolResult(
        status=status.value,
        is_error=status is not Status.OK,
        text=_encodable(output.text),
        restarted=output.restarted,
        replayed=output.replayed,
    )


def _refuse(status: str, text: str) -> ToolResult:
    return ToolResult(status=status, is_error=True, text=_encodable(text))


def _encodable(text: str) -> str:
    """The text without lone surrogates, which no tokenizer takes, and not without end."""
    text = text[:MAX_TEXT_CHARS]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
