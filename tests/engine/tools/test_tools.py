"""From calls to results: every refusal, the notebook, and who runs when."""

import asyncio
import json
from typing import Any

import pytest

from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.tools.jupyter import JUPYTER_TOOL, JupyterTool
from rocstar.engine.tools.python import PYTHON_SCHEMA, PYTHON_TOOL, PYTHON_TOOL_NAMES
from rocstar.engine.types import ToolCall, ToolResult
from rocstar.sandbox.types import ExecRequest, ExecResult, SandboxError
from tests.fakes import sandbox as fake
from tests.fakes.sandbox import FakeSandbox

from ..tool_calls import LIMITS, box, call, execute

# ---- refusals ----


@pytest.mark.parametrize(
    ("bad", "status", "words"),
    [
        (ToolCall(name=None, arguments=None, malformed="why"), "malformed_call", "decode tool call: why"),
        (call("p", name="WolframAlpha"), "unknown_tool", "'WolframAlpha'"),
        (call("p", name="half \ud83d"), "unknown_tool", r"\ud83d"),
        (call(1), "bad_arguments", "'code' must be a string"),
        (call(None), "bad_arguments", "'code' must be a string"),
        (call("p", input=[1]), "bad_arguments", "'input' must be a string"),
        (call("'\ud83d'"), "bad_arguments", "'code' holds a lone surrogate"),
        (call("p", input="\udc00"), "bad_arguments", "'input' holds a lone surrogate"),
        (call("p\0"), "bad_arguments", "'code' holds a NUL"),
    ],
)
async def test_refused_call_is_an_error_and_not_run(bad: ToolCall, status: str, words: str) -> None:
    tools = box({"p": fake.ok("fine")})
    refused, fine = await execute(tools, bad, call("p"))
    assert (refused.status, refused.is_error) == (status, True)
    assert words in refused.text and refused.text.encode()
    assert (fine.is_error, fine.text) == (False, "fine")
    assert isinstance(tools.sandbox, FakeSandbox) and len(tools.sandbox.requests) == 1


async def test_calls_beyond_the_limit_are_refused_in_place() -> None:
    tools = box(lambda request: fake.ok(request.code), max_parallel_calls=2)
    malformed = ToolCall(name=None, arguments=None, malformed="x")
    results = await execute(tools, malformed, call("a"), call("b"), malformed)
    assert [r.status for r in results] == ["malformed_call", "ok", "too_many_calls", "malformed_call"]
    assert "Only 2 tool calls" in results[2].text and results[2].is_error


async def test_missing_arguments_are_empty_and_extra_ones_ignored() -> None:
    tools = box(lambda request: fake.ok(f"[{request.code}|{request.stdin}]"))
    nothing = ToolCall(name=PYTHON_TOOL, arguments={"language": "python"})
    assert [r.text for r in await execute(tools, nothing, call("c", input="i\0"))] == ["[|]", "[c|i\0]"]


async def test_both_names_of_the_tool_work_and_the_schema_offers_one() -> None:
    for name in PYTHON_TOOL_NAMES:
        assert (await execute(box({"p": fake.ok("1")}), call("p", name=name)))[0].text == "1"
    assert box({}).schemas == [PYTHON_SCHEMA]
    assert PYTHON_SCHEMA["function"]["name"] == PYTHON_TOOL in PYTHON_TOOL_NAMES


# ---- the notebook ----


def notebook(script: Any, *, style: Any = "brief", max_parallel_calls: int = 4) -> Dispatcher:
    return Dispatcher(
        tools=[JupyterTool(limits=LIMITS, flavour="stdlib", style=style)],
        sandbox=script if isinstance(script, FakeSandbox) else FakeSandbox(script),
        max_parallel_calls=max_parallel_calls,
    )


def cell(code: Any, **arguments: Any) -> ToolCall:
    return call(code, name=JUPYTER_TOOL, **arguments)


def test_notebook_schema_is_the_originals_word_for_word() -> None:
    assert json.dumps(notebook({}).schemas) == (
        '[{"type": "function", "function": {"name": "jupyter_code", "description": "Execute python code in a '
        'Jupyter notebook cell and return result", "parameters": {"type": "object", "properties": {"code": '
        '{"type": "string", "description": "The python code to execute in a single cell"}}, "required": '
        '["code"]}}}]'
    )


async def test_cells_run_one_after_the_other_in_one_interpreter() -> None:
    class OneAtATime(FakeSandbox):
        running = 0

        async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
            assert not self.running
            self.running += 1
            try:
                return await super().run(request, deadline=deadline)
            finally:
                self.running -= 1

    sandbox = OneAtATime(lambda request: fake.ok(request.code))
    tools = notebook(sandbox)
    async with tools.open(seed=9) as opened:
        first = await opened.execute([cell("a"), cell("b"), cell("c")], turn=1, deadline=None)
        (second,) = await opened.execute([cell("d")], turn=2, deadline=None)
        (session,) = sandbox.sessions
        assert session.lost is None
    assert [r.text for r in (*first, second)] == ["a", "b", "c", "d"] == session.cells
    assert session.lost == "closed"
    assert {(r.flavour, r.limits, r.seed) for r in sandbox.requests} == {("stdlib", LIMITS, 9)}


async def test_refused_cells_open_nothing_and_stand_in_their_place() -> None:
    sandbox = FakeSandbox(lambda request: fake.ok(request.code))
    bad = [call("p"), cell(1), cell("\0"), ToolCall(name=None, arguments=None, malformed="x"), cell("late")]
    async with notebook(sandbox).open(seed=0) as opened:
        results = await opened.execute(bad, turn=1, deadline=None)
        assert not sandbox.sessions
        (fine,) = await opened.execute([cell("p", input="ignored")], turn=2, deadline=None)
    statuses = ["unknown_tool", "bad_arguments", "bad_arguments", "malformed_call", "too_many_calls"]
    assert [r.status for r in results] == statuses and all(r.is_error for r in results)
    assert "the tool is 'jupyter_code'" in results[0].text
    assert fine == ToolResult(status="ok", is_error=False, text="p")


@pytest.mark.parametrize(
    ("style", "text"),
    [("brief", "2"), ("plain", "2"), ("rstar2", "Tool call success\nstdout: 2\n\nexecution time: 0.00s")],
)
async def test_a_restart_is_told_once_in_constant_words(style: Any, text: str) -> None:
    tools = notebook({"die": fake.signaled(), "1+1": fake.ok(value="2")}, style=style)
    async with tools.open(seed=0) as opened:
        results = await opened.execute([cell("die"), cell("1+1"), cell("1+1")], turn=1, deadline=None)
    assert [r.text for r in results[1:]] == [f"(the interpreter was restarted)\n{text}", text]
    assert [(r.restarted, r.replayed) for r in results] == [(False, False), (True, False), (False, False)]
    assert not results[1].is_error, "as any other result"


async def test_a_replay_is_marked_and_not_told() -> None:
    sandbox = FakeSandbox(lambda request: fake.ok(request.code))
    async with notebook(sandbox).open(seed=3) as opened:
        await opened.execute([cell("a"), cell("b")], turn=1, deadline=None)
        sandbox.lose(sandbox.sessions[0], "evicted")
        (result,) = await opened.execute([cell("c")], turn=2, deadline=None)
    assert result == ToolResult(status="ok", is_error=False, text="c", replayed=True)
    assert [session.cells for session in sandbox.sessions] == [["a", "b"], ["a", "b", "c"]]


# ---- execution ----


async def test_requests_carry_limits_flavour_seed_and_deadline() -> None:
    tools = box({"a": fake.ok(), "b": fake.ok()})
    async with tools.open(seed=40) as opened:
        await opened.execute([call("a", input="in"), call("b")], turn=1, deadline=None)
        await opened.execute([call("a")], turn=2, deadline=None)
    assert isinstance(tools.sandbox, FakeSandbox)
    assert tools.sandbox.requests == [
        ExecRequest(code="a", stdin="in", limits=LIMITS, flavour="stdlib", seed=40 + 64),
        ExecRequest(code="b", stdin="", limits=LIMITS, flavour="stdlib", seed=41 + 64),
        ExecRequest(code="a", stdin="", limits=LIMITS, flavour="stdlib", seed=40 + 128),
    ]
    with pytest.raises(SandboxError) as caught:
        async with tools.open(seed=0) as opened:
            await opened.execute([call("a")], turn=1, deadline=asyncio.get_running_loop().time() - 1)
    assert caught.value.kind == "deadline"
