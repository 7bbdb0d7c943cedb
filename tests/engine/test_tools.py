"""From a call to the words the policy reads: every status, every refusal, concurrency, and the cut."""

import asyncio
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocstar.engine.testing import ByteTokenizer
from rocstar.engine.tools import (
    CUT_MARKER,
    JUPYTER_TOOL,
    MAX_TOKEN_CHARS,
    PYTHON_SCHEMA,
    PYTHON_TOOL,
    PYTHON_TOOL_NAMES,
    JupyterToolBox,
    PythonToolBox,
    ToolBox,
    cut_middle,
    result_text,
)
from rocstar.engine.types import ToolCall, ToolResult
from rocstar.sandbox import testing as fake
from rocstar.sandbox.testing import FakeSandbox
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, SandboxError

LIMITS = Limits(wall_s=1.5)


def box(script: Any, *, max_parallel_calls: int = 4, sandbox: Any = None) -> PythonToolBox:
    return PythonToolBox(
        sandbox=sandbox or FakeSandbox(script),
        limits=LIMITS,
        flavour="stdlib",
        style="brief",
        max_parallel_calls=max_parallel_calls,
    )


def call(code: Any, name: str = PYTHON_TOOL, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments={"code": code, **arguments})


async def execute(tools: ToolBox, *calls: ToolCall) -> tuple[ToolResult, ...]:
    async with tools.open(seed=100) as opened:
        return await opened.execute(calls, turn=1, deadline=None)


# ---- results ----

TRACEBACK = """Traceback (most recent call last):
  File "<cell>", line 3, in <module>
    b=a/0
      ~^~
ZeroDivisionError: division by zero
"""
RESULTS = {
    "stdout": fake.ok("2\n"),
    "value": fake.ok(value="42"),
    "both": fake.ok("a\n", value="42"),
    "silent": fake.ok(),
    "warning": fake.ok(stderr="<cell>:1: UserWarning: w\n"),
    "exception": fake.error(TRACEBACK, stdout="before\n"),
    "exit": fake.error(exit_code=3),
    "segfault": fake.signaled(11),
    "timeout": fake.timeout(),
    "memory": fake.memory_limit(),
    "output": fake.output_limit("xxx"),
    "denied": fake.denied(),
}
BRIEF = {
    "stdout": "2",
    "value": "42",
    "both": "a\n42",
    "silent": "(no output)",
    "warning": "(no output)",
    "exception": "ZeroDivisionError: division by zero",
    "exit": "exit code 3",
    "segfault": "killed by signal 11",
    "timeout": "TimeoutError: the program exceeded its time limit",
    "memory": "MemoryError: the program exceeded its memory limit",
    "output": "OutputLimitError: the program printed too much",
    "denied": "PermissionError: the program used an operation that is not allowed",
}
PLAIN = BRIEF | {"exception": "before\n" + TRACEBACK.rstrip("\n"), "output": "xxx\n" + BRIEF["output"]}


@pytest.mark.parametrize("case", RESULTS)
async def test_every_status_has_its_words_and_its_error_flag(case: str) -> None:
    result = RESULTS[case]
    assert result_text(result, "brief") == BRIEF[case]
    assert result_text(result, "plain") == PLAIN[case]
    (told,) = await execute(box({"p": result}), call("p"))
    assert told == ToolResult(status=result.status.value, is_error=result.exit_code != 0, text=BRIEF[case])


def test_every_status_is_covered() -> None:
    assert {r.status for r in RESULTS.values()} == set(type(fake.ok().status))


@pytest.mark.parametrize("style", ["brief", "plain"])
@pytest.mark.parametrize("case", RESULTS)
def test_no_time_in_what_the_policy_reads(style: Any, case: str) -> None:
    slow = dataclasses.replace(RESULTS[case], wall_s=123.456, cpu_s=123.456)
    assert result_text(slow, style) == result_text(RESULTS[case], style)


def seconds(result: ExecResult, wall_s: float) -> ExecResult:
    return dataclasses.replace(result, wall_s=wall_s)


def trace(line: int, source: str, error: str) -> str:
    frame = f'  File "<cell>", line {line}, in <module>\n    {source}\n'
    return f"Traceback (most recent call last):\n{frame}{error}\n"


SYNTAX = '  File "<cell>", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'
NESTED = (
    'Traceback (most recent call last):\n  File "<cell>", line 9, in <module>\n    f()\n'
    '  File "<cell>", line 2, in f\n    raise ValueError("a\\nb: c")\nValueError: a\nb: c\n'
)
RSTAR2 = [
    (fake.ok("2\n"), 0.01, "Tool call success\nstdout: 2\n\nexecution time: 0.01s"),
    (fake.ok(value="42"), 0.01, "Tool call success\nstdout: 42\n\nexecution time: 0.01s"),
    (fake.ok(), 0.01, "Tool call success\nexecution time: 0.01s"),
    (
        fake.ok(stderr="<cell>:1: UserWarning: w\n"),
        0.01,
        "Tool call success\nstderr: <string>:1: UserWarning: w\n\nexecution time: 0.01s",
    ),
    (
        fake.error(TRACEBACK),
        0.03,
        "Tool call failure\nreason: \nstderr: ZeroDivisionError at line 3: division by zero\n  b=a/0\n\n"
        "execution time: 0.03s",
    ),
    (
        fake.error(SYNTAX),
        0.03,
        "Tool call failure\nreason: \nstderr: SyntaxError at line 1: invalid syntax (<unknown>, line 1)\n"
        "  def f(:\n\nexecution time: 0.03s",
    ),
    (
        fake.timeout(),
        4.02,
        "Tool call failure\nreason: worker_timeout\nstdout: Suicide from timeout.\n\nexecution time: 4.02s",
    ),
    (
        fake.memory_limit(trace(1, "x=[0]*(10**9)", "MemoryError")),
        0.03,
        "Tool call failure\nreason: \nstderr: MemoryError at line 1: \n  x=[0]*(10**9)\n\n"
        "execution time: 0.03s",
    ),
    (
        fake.error(trace(1, "input()", "EOFError: EOF when reading a line")),
        0.03,
        "Tool call failure\nreason: \nstderr: EOFError at line 1: EOF when reading a line\n  input()\n\n"
        "execution time: 0.03s",
    ),
    (fake.error(stdout="x\n"), 0.07, "Tool call failure\nreason: \nstdout: x\n\nexecution time: 0.07s"),
    (fake.signaled(9), 0.07, "Tool call failure\nreason: \nexecution time: 0.07s"),
    (
        fake.error(NESTED),
        0.03,
        "Tool call failure\nreason: \nstderr: ValueError at line 2: a\nb: c\n"
        '  raise ValueError("a\\nb: c")\n\nexecution time: 0.03s',
    ),
    (
        fake.error(trace(4, "json.loads('')", "json.decoder.JSONDecodeError: Expecting value: line 1")),
        0.03,
        "Tool call failure\nreason: \nstderr: JSONDecodeError at line 4: Expecting value: line 1\n"
        "  json.loads('')\n\nexecution time: 0.03s",
    ),
    (fake.error("bye\n"), 0.03, "Tool call failure\nreason: \nstderr: bye\n\nexecution time: 0.03s"),
    (
        fake.error('Traceback:\n  File "<cell>", line 1, in <module>\n'),
        0.0,
        'Tool call failure\nreason: \nstderr: Traceback:\n  File "<cell>", line 1, in <module>\n\n'
        "execution time: 0.00s",
    ),
]


@pytest.mark.parametrize(("result", "wall_s", "expected"), RSTAR2)
def test_rstar2_strings_are_the_originals(result: ExecResult, wall_s: float, expected: str) -> None:
    assert result_text(seconds(result, wall_s), "rstar2") == expected


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


@pytest.mark.parametrize("name", sorted(PYTHON_TOOL_NAMES))
async def test_both_names_of_the_tool_work(name: str) -> None:
    assert (await execute(box({"p": fake.ok("1")}), call("p", name=name)))[0].text == "1"


def test_schema_offers_the_tool_by_its_name() -> None:
    assert box({}).schemas == [PYTHON_SCHEMA]
    assert PYTHON_SCHEMA["function"]["name"] == PYTHON_TOOL in PYTHON_TOOL_NAMES


# ---- the notebook ----


def notebook(script: Any, *, style: Any = "brief", max_parallel_calls: int = 4) -> JupyterToolBox:
    return JupyterToolBox(
        sandbox=script if isinstance(script, FakeSandbox) else FakeSandbox(script),
        limits=LIMITS,
        flavour="stdlib",
        style=style,
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


async def test_trajectories_do_not_share_interpreters() -> None:
    sandbox = FakeSandbox(lambda request: fake.ok())
    async with notebook(sandbox).open(seed=1) as one, notebook(sandbox).open(seed=2) as two:
        await one.execute([cell("a")], turn=1, deadline=None)
        await two.execute([cell("b")], turn=1, deadline=None)
    assert [session.cells for session in sandbox.sessions] == [["a"], ["b"]]


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


INTERRUPTED = (
    'Traceback (most recent call last):\n  File "<cell 4>", line 2, in <module>\n    while True: pass\n'
    "KeyboardInterrupt\n"
)
RSTAR2_CELLS = [
    (
        fake.error(
            trace(1, "f()", "").replace("<cell>", "<cell 3>").rstrip() + "\n" + '  File "<cell 2>", '
            "line 2, in f\n    return 1/0\n           ~^~\nZeroDivisionError: division by zero\n"
        ),
        "Tool call failure\nreason: \nstderr: ZeroDivisionError at line 2: division by zero\n  return 1/0\n\n"
        "execution time: 0.00s",
    ),
    (
        fake.error(SYNTAX.replace("<cell>", "<cell 12>")),
        "Tool call failure\nreason: \nstderr: SyntaxError at line 1: invalid syntax (<unknown>, line 1)\n"
        "  def f(:\n\nexecution time: 0.00s",
    ),
    (
        fake.ok(stderr="<cell 6>:1: UserWarning: w\n  warnings.warn('w')\n"),
        "Tool call success\nstderr: <string>:1: UserWarning: w\n\nexecution time: 0.00s",
    ),
    (
        dataclasses.replace(fake.timeout(), exit_code=1, signal=None, stdout="go\n", stderr=INTERRUPTED),
        "Tool call failure\nreason: worker_timeout\nstdout: go\nSuicide from timeout.\n\n"
        "execution time: 0.00s",
    ),
    (
        fake.error(INTERRUPTED.replace("while True: pass", "raise KeyboardInterrupt")),
        "Tool call failure\nreason: \nstderr: KeyboardInterrupt at line 2: \n  raise KeyboardInterrupt\n\n"
        "execution time: 0.00s",
    ),
]


@pytest.mark.parametrize(("result", "expected"), RSTAR2_CELLS)
def test_rstar2_strings_of_cells_are_the_originals(result: ExecResult, expected: str) -> None:
    assert result_text(result, "rstar2") == expected


# ---- execution ----


async def test_requests_carry_limits_flavour_seed_and_deadline() -> None:
    tools = box({"a": fake.ok(), "b": fake.ok()})
    async with tools.open(seed=40) as opened:
        await opened.execute([call("a", input="in"), call("b")], turn=1, deadline=None)
    assert isinstance(tools.sandbox, FakeSandbox)
    assert tools.sandbox.requests == [
        ExecRequest(code="a", stdin="in", limits=LIMITS, flavour="stdlib", seed=40 + 64),
        ExecRequest(code="b", stdin="", limits=LIMITS, flavour="stdlib", seed=41 + 64),
    ]
    with pytest.raises(SandboxError) as caught:
        async with tools.open(seed=0) as opened:
            await opened.execute([call("a")], turn=1, deadline=asyncio.get_running_loop().time() - 1)
    assert caught.value.kind == "deadline"


class Barrier:
    """A sandbox whose programs end only when `parties` of them run, the last one first."""

    def __init__(self, parties: int) -> None:
        self.running: list[str] = []
        self.ended: list[str] = []
        self._parties, self._turn = parties, asyncio.Condition()

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        async with self._turn:
            self.running.append(request.code)
            self._turn.notify_all()
            await self._turn.wait_for(lambda: len(self.running) == self._parties)
            await self._turn.wait_for(lambda: self.running[-1 - len(self.ended)] == request.code)
            self.ended.append(request.code)
            self._turn.notify_all()
            return fake.ok(request.code)


async def test_calls_of_a_turn_run_together_and_answer_in_order() -> None:
    sandbox = Barrier(3)
    results = await execute(box({}, sandbox=sandbox), call("a"), call("b"), call("c"))
    assert [r.text for r in results] == ["a", "b", "c"]
    assert sandbox.ended == ["c", "b", "a"]


async def test_sandbox_error_passes_through_as_itself() -> None:
    lost = SandboxError("gone", kind="zygote_died", retryable=True)
    for codes in (["a", "bad"], ["bad", "bad"], ["bad"]):
        with pytest.raises(SandboxError) as caught:
            await execute(box({"a": fake.ok(), "bad": lost}), *(call(code) for code in codes))
        assert caught.value is lost


async def test_failure_cancels_the_other_calls() -> None:
    cancelled = asyncio.Event()

    class Half:
        async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
            if request.code == "bad":
                await asyncio.sleep(0)
                raise SandboxError("gone", kind="closed", retryable=False)
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            raise AssertionError

    with pytest.raises(SandboxError):
        await execute(box({}, sandbox=Half()), call("slow"), call("bad"))
    assert cancelled.is_set()


# ---- the cut ----

BYTES = ByteTokenizer()
MERGED = ByteTokenizer(corpus=["the answer is 42 and the sum of it\n" * 9], vocab_size=330)


@pytest.mark.parametrize("tokenizer", [BYTES, MERGED])
@given(
    text=st.lists(st.sampled_from(["the sum ", "42", "\n", "é", "😀", "<|im_end|>", "x"]), max_size=60).map(
        "".join
    ),
    max_tokens=st.integers(0, 60),
)
@example(text="😀" * 20, max_tokens=40)  # four bytes each: more tokens than characters
def test_cut_keeps_head_and_tail_around_one_marker(
    tokenizer: ByteTokenizer, text: str, max_tokens: int
) -> None:
    ids = tokenizer.encode(text)
    cut = cut_middle(text, tokenizer, max_tokens)
    if len(ids) <= max_tokens:
        assert cut == text
        return
    marker = len(tokenizer.encode(CUT_MARKER))
    room = max(0, max_tokens - marker)
    assert cut.count(CUT_MARKER) == 1
    head, _, tail = cut.partition(CUT_MARKER)
    head, tail = head.rstrip("\ufffd"), tail.lstrip("\ufffd")  # a cut inside a character
    assert text.startswith(head) and text.endswith(tail)
    # "About": a character cut in two is shown as U+FFFD, three bytes for at most three lost on either side.
    assert len(tokenizer.encode(cut)) <= max(max_tokens, marker) + 2 * 9
    kept = len(tokenizer.encode(head)) + len(tokenizer.encode(tail))
    assert kept >= room - 2 * 3


def test_cut_of_megabytes_encodes_only_its_ends() -> None:
    class Counted(ByteTokenizer):
        seen = 0

        def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
            self.seen += len(text)
            return super().encode(text, add_special_tokens=add_special_tokens)

    tokenizer = Counted()
    cut = cut_middle("a" * 500_000 + "b" * 500_000, tokenizer, 100)
    assert cut == "a" * 42 + CUT_MARKER + "b" * 41
    assert tokenizer.seen <= 2 * 100 * MAX_TOKEN_CHARS + len(CUT_MARKER)


def test_short_text_is_not_even_encoded() -> None:
    assert cut_middle("ab", None, 8) == "ab"  # type: ignore[arg-type]
