"""Anybody's tools in one box: who gets a call, what bounds it, what is its error, what a failure of ours."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from rocstar.engine.tools.box import CLOSE_TIMEOUT_S, MAX_TEXT_CHARS, Dispatcher
from rocstar.engine.tools.jupyter import JUPYTER_TOOL, JupyterTool
from rocstar.engine.tools.python import PYTHON_TOOL, PythonTool
from rocstar.engine.tools.tool import BadArguments, Tool, ToolContext, ToolError, ToolFailure, ToolOutput
from rocstar.engine.types import ToolCall, ToolResult
from rocstar.sandbox.types import Limits, SandboxError, Status
from tests.fakes import sandbox as fake
from tests.fakes.sandbox import FakeSandbox
from tests.fakes.scripted_policy import VirtualClockLoop, on_virtual_time, run_virtual

from ..tool_calls import execute

PARAMETERS = {
    "type": "object",
    "properties": {"query": {"type": "string"}, "k": {"type": "integer", "maximum": 5}},
    "required": ["query"],
    "additionalProperties": False,
}


class Own(Tool):
    """A tool that does what it is told to, and remembers what was asked of it."""

    description = "Does as it is told"
    parameters = PARAMETERS

    def __init__(self, name: str = "own", act: Callable[[str], Any] | None = None) -> None:
        self.name, self._act = name, act
        self.contexts: list[ToolContext] = []
        self.log: list[str] = []

    async def open(self, context: ToolContext) -> Any:
        self.log.append("open")
        return {"seed": context.seed}

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        self.contexts.append(context)
        self.log.append(arguments["query"])
        done = self._act(arguments["query"]) if self._act else ToolOutput(arguments["query"].upper())
        output: ToolOutput = await done if asyncio.iscoroutine(done) else done
        return output

    async def close(self, session: Any) -> None:
        self.log.append("close")


def ask(query: Any = "q", name: str = "own", **more: Any) -> ToolCall:
    return ToolCall(name=name, arguments={"query": query, **more})


def fail(error: Exception) -> Callable[[str], Any]:
    def act(query: str) -> Any:
        raise error

    return act


# ---- by name ----


async def test_each_call_goes_to_the_tool_of_its_name() -> None:
    style: dict[str, Any] = {"limits": Limits(), "flavour": "stdlib", "style": "brief"}
    sandbox = FakeSandbox(lambda request: fake.ok(f"ran {request.code}"))
    box = Dispatcher(tools=[PythonTool(**style), Own(), JupyterTool(**style)], sandbox=sandbox)
    calls = [
        ToolCall(name=JUPYTER_TOOL, arguments={"code": "cell"}),
        ask("one"),
        ToolCall(name="execute_python_code_with_standard_io", arguments={"code": "program"}),
        ask("x", name="nobody"),
    ]
    results = await execute(box, *calls)
    assert [r.text for r in results[:3]] == ["ran cell", "ONE", "ran program"]
    names = f"'{PYTHON_TOOL}', 'own', '{JUPYTER_TOOL}'"
    assert results[3] == ToolResult(
        status="unknown_tool", is_error=True, text=f"Unknown tool 'nobody'; the tools are {names}"
    )
    assert [s["function"]["name"] for s in box.schemas] == [PYTHON_TOOL, "own", JUPYTER_TOOL]
    assert box.schemas[1] == {
        "type": "function",
        "function": {"name": "own", "description": "Does as it is told", "parameters": PARAMETERS},
    }


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two tools are called 'own'"):
        Dispatcher(tools=[Own(), Own()])
    programs = PythonTool(limits=Limits(), flavour="stdlib", style="brief")
    with pytest.raises(ValueError, match="execute_python_code"):
        Dispatcher(tools=[programs, Own("execute_python_code_with_standard_io")])


async def test_the_limit_of_calls_is_one_for_all_tools() -> None:
    box = Dispatcher(tools=[Own("a"), Own("b")], max_parallel_calls=2)
    results = await execute(box, ask(name="a"), ask(name="b"), ask(name="a"), ask(name="b"))
    assert [r.status for r in results] == ["ok", "ok", "too_many_calls", "too_many_calls"]


# ---- what is an error of the call ----


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "'query' is a required property"),
        ({"query": 1}, "Argument 'query': 1 is not of type 'string'"),
        ({"query": "q", "k": 6}, "Argument 'k': 6 is greater than the maximum of 5"),
        ({"query": "q", "more": 1}, "'more' was unexpected"),
        ({"query": "half \ud83d"}, "Argument 'query' holds a lone surrogate"),
        ({"query": "q", "\udc00": 1}, "lone surrogate"),
    ],
)
async def test_arguments_that_do_not_fit_the_schema_are_refused(arguments: Any, words: str) -> None:
    own = Own()
    (result,) = await execute(Dispatcher(tools=[own]), ToolCall(name="own", arguments=arguments))
    assert (result.status, result.is_error) == ("bad_arguments", True)
    assert words in result.text and result.text.encode() and len(result.text) < 400
    assert own.log == [], "and nothing is opened for it"


async def test_a_tool_error_is_what_the_policy_reads() -> None:
    (result,) = await execute(Dispatcher(tools=[Own(act=fail(ToolError("no such place")))]), ask())
    assert result == ToolResult(status="error", is_error=True, text="no such place")


@pytest.mark.parametrize("status", Status)
async def test_every_status_but_ok_is_an_error(status: Status) -> None:
    (result,) = await execute(Dispatcher(tools=[Own(act=lambda q: ToolOutput("t", status))]), ask())
    assert result == ToolResult(status=status.value, is_error=status is not Status.OK, text="t")


async def test_an_output_is_bounded_and_text() -> None:
    (result,) = await execute(Dispatcher(tools=[Own(act=lambda q: ToolOutput("x" * (MAX_TEXT_CHARS + 1)))]), ask())
    assert (result.status, result.is_error, len(result.text) < 100) == ("output_limit", True, True)
    (result,) = await execute(Dispatcher(tools=[Own(act=lambda q: ToolOutput("half \ud83d"))]), ask())
    assert result.text == "half ?"


# ---- what bounds a call ----


def test_a_hang_is_a_timeout_and_the_other_calls_are_answered() -> None:
    async def act(query: str) -> ToolOutput:
        if query == "hang":
            await asyncio.Event().wait()
        return ToolOutput(query)

    async def work() -> tuple[ToolResult, ...]:
        results = await execute(Dispatcher(tools=[Own(act=act)], timeout_s=3.0), ask("hang"), ask("fine"))
        assert asyncio.get_running_loop().time() == pytest.approx(3.0)
        return results

    hung, fine = run_virtual(work())
    assert hung == ToolResult(status="timeout", is_error=True, text="TimeoutError: the tool exceeded its time limit")
    assert fine.text == "fine"


def test_a_tools_own_limit_comes_before_that_of_all() -> None:
    async def act(query: str) -> ToolOutput:
        await asyncio.sleep(50.0)
        return ToolOutput("late")

    patient = Own(act=act)
    patient.timeout_s = 60.0
    assert run_virtual(execute(Dispatcher(tools=[patient], timeout_s=3.0), ask()))[0].text == "late"


@on_virtual_time
async def test_the_deadline_of_the_trajectory_is_no_timeout_of_the_tool() -> None:
    box = Dispatcher(tools=[Own(act=lambda q: asyncio.Event().wait())], timeout_s=30.0)
    async with box.open(seed=0) as tools:
        with pytest.raises(TimeoutError):
            await tools.execute([ask()], turn=1, deadline=5.0)
    assert asyncio.get_running_loop().time() == pytest.approx(5.0)


def test_a_deadline_that_passed_while_our_loop_stood_still_is_no_verdict() -> None:
    async def act(query: str) -> ToolOutput:
        await asyncio.sleep(1.0)
        await asyncio.sleep(1.0)
        return ToolOutput("in its time")

    async def work() -> tuple[ToolResult, ...]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualClockLoop)

        def block() -> None:
            loop._jumping.now += 10.0

        loop.call_later(0.5, block)
        return await execute(Dispatcher(tools=[Own(act=act)], timeout_s=3.0), ask())

    assert run_virtual(work())[0].text == "in its time"


def test_a_tool_that_does_not_end_when_cancelled_fails_the_trajectory() -> None:
    async def act(query: str) -> ToolOutput:
        for _ in range(3):
            try:
                await asyncio.sleep(3600.0)
            except asyncio.CancelledError:
                continue
        return ToolOutput("never")

    with pytest.raises(ToolFailure, match="does not end when it is cancelled"):
        run_virtual(execute(Dispatcher(tools=[Own(act=act)]), ask()))


# ---- what is a failure of ours ----


@pytest.mark.parametrize(
    "error", [RuntimeError("no index"), TimeoutError("the index is slow"), KeyError("k"), LookupError()]
)
async def test_an_exception_of_a_tool_is_no_text(error: Exception) -> None:
    with pytest.raises(ToolFailure, match=rf"own: {type(error).__name__}: .*\(test_box.py:\d+\)") as caught:
        await execute(Dispatcher(tools=[Own(act=fail(error))]), ask())
    assert (caught.value.kind, caught.value.retryable) == ("tool_failed", False)


async def test_a_failure_told_as_one_passes_as_itself() -> None:
    for error in (ToolFailure("down", retryable=True), SandboxError("x", kind="closed", retryable=True)):
        for calls in (1, 2):
            with pytest.raises(type(error)) as caught:
                await execute(Dispatcher(tools=[Own(act=fail(error))]), *[ask()] * calls)
            assert caught.value is error


async def test_what_is_no_output_is_a_failure() -> None:
    with pytest.raises(ToolFailure, match="call returned str, not a ToolOutput"):
        await execute(Dispatcher(tools=[Own(act=lambda q: "text")]), ask())
    with pytest.raises(ToolFailure, match="of type int; give a str"):
        await execute(Dispatcher(tools=[Own(act=lambda q: ToolOutput(1))]), ask())  # type: ignore[arg-type]


async def test_a_tool_that_cancels_itself_does_not_cancel_the_trajectory() -> None:
    async def act(query: str) -> ToolOutput:
        raise asyncio.CancelledError

    with pytest.raises(ToolFailure, match="it cancelled its own call"):
        await execute(Dispatcher(tools=[Own(act=act)]), ask())


async def test_a_call_may_find_its_arguments_bad_too() -> None:
    (result,) = await execute(Dispatcher(tools=[Own(act=fail(BadArguments("k" * (1 << 21))))]), ask())
    assert (result.status, len(result.text)) == ("bad_arguments", MAX_TEXT_CHARS)


# ---- together, or one after the other ----


async def test_different_tools_run_together_and_the_calls_of_one_that_asks_for_it_do_not() -> None:
    running: list[str] = []
    most: dict[str, int] = {}
    seen: list[frozenset[str]] = []

    def act(name: str) -> Callable[[str], Any]:
        async def run(query: str) -> ToolOutput:
            running.append(name)
            most[name] = max(most.get(name, 0), running.count(name))
            for _ in range(5):
                await asyncio.sleep(0)
                seen.append(frozenset(running))
            running.remove(name)
            return ToolOutput(query)

        return run

    one_by_one = Own("cells", act("cells"))
    one_by_one.parallel = False
    box = Dispatcher(tools=[one_by_one, Own("free", act("free"))], max_parallel_calls=9)
    calls = [ask(str(k), name=("cells", "free")[k % 2]) for k in range(6)]
    assert [r.text for r in await execute(box, *calls)] == list("012345")
    assert most == {"cells": 1, "free": 3} and frozenset({"cells", "free"}) in seen
    assert [text for text in one_by_one.log if text.isdigit()] == ["0", "2", "4"]


async def test_a_failure_ends_the_calls_of_the_other_tools() -> None:
    ended = asyncio.Event()

    async def wait(query: str) -> ToolOutput:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    async def break_(query: str) -> ToolOutput:
        await asyncio.sleep(0)
        raise RuntimeError("gone")

    with pytest.raises(ToolFailure, match="gone"):
        await execute(Dispatcher(tools=[Own("a", wait), Own("b", break_)]), ask(name="a"), ask(name="b"))
    assert ended.is_set()
    ended.clear()

    async def either(query: str) -> ToolOutput:
        return await (wait if query == "wait" else break_)(query)

    with pytest.raises(ToolFailure, match="gone"):  # and those of the same one
        await execute(Dispatcher(tools=[Own(act=either)]), ask("wait"), ask("break"))
    assert ended.is_set()


# ---- sessions ----


async def test_a_session_is_opened_once_and_closed_at_the_end() -> None:
    own = Own()
    box = Dispatcher(tools=[own, Own("unused")])
    async with box.open(seed=40) as tools:
        await tools.execute([ask("a"), ask("b")], turn=1, deadline=None)
        await tools.execute([ask("c")], turn=2, deadline=None)
    assert own.log == ["open", "a", "b", "c", "close"]
    assert [context.session for context in own.contexts] == [{"seed": 40}] * 3
    assert own.contexts[0].session is own.contexts[2].session
    assert [context.seed for context in own.contexts] == [40 + 64, 41 + 64, 40 + 128]
    unused = box.tools[1]
    assert isinstance(unused, Own) and unused.log == []


async def interrupted(tool: Tool) -> None:
    async with Dispatcher(tools=[tool]).open(seed=0) as tools:
        await tools.execute([ask()], turn=1, deadline=None)
        raise KeyError


async def test_a_session_is_closed_in_whatever_way_its_trajectory_ends() -> None:
    own = Own()
    with pytest.raises(KeyError):
        await interrupted(own)
    assert own.log == ["open", "q", "close"]

    began = asyncio.Event()

    async def hang() -> None:
        async with Dispatcher(tools=[own]).open(seed=0) as tools:
            await tools.execute([ask("b")], turn=1, deadline=None)
            began.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(hang())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert own.log[-2:] == ["b", "close"]


class Broken(Own):
    """Its sessions cannot be closed, or not be opened."""

    async def open(self, context: ToolContext) -> Any:
        if self.name == "no_open":
            raise ToolError("not today")
        if self.name == "slow_open":
            await asyncio.Event().wait()

    async def close(self, session: Any) -> None:
        if self.name == "slow_close":
            await asyncio.Event().wait()
        raise OSError("cannot close")


@pytest.mark.parametrize(
    ("name", "words", "after_s"),
    [
        ("no_close", "its session was not closed: .*cannot close", 0.0),
        ("slow_close", "its session was not closed", CLOSE_TIMEOUT_S),
        ("no_open", "its session was not opened: not today", 0.0),
        ("slow_open", "its session was not opened in time", 4.0),
    ],
)
@on_virtual_time
async def test_a_session_that_fails_fails_its_trajectory(name: str, words: str, after_s: float) -> None:
    with pytest.raises(ToolFailure, match=words):
        await execute(Dispatcher(tools=[Broken(name)]), ask(name=name))
    assert asyncio.get_running_loop().time() == pytest.approx(after_s)


async def test_what_ended_a_trajectory_is_told_and_not_what_closing_said_to_it() -> None:
    with pytest.raises(KeyError):
        await interrupted(Broken())
