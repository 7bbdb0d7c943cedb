"""One trajectory under a script: how it ends, what it holds, and that our failures are data."""

import asyncio
import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.inference.base import InferenceError
from rocstar.engine.rollout.rollout import Agent, run_trajectory
from rocstar.engine.seeds import stream_of
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.tools.jupyter import JUPYTER_TOOL, JupyterTool
from rocstar.engine.tools.results import CUT_MARKER
from rocstar.engine.tools.tool import Tool, ToolContext, ToolOutput
from rocstar.engine.types import (
    Attempt,
    Failed,
    FinishReason,
    Origin,
    Outcome,
    Scored,
    Span,
    Task,
    Trajectory,
    TrajectoryKey,
)
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, SandboxError, SessionLost
from tests.fakes import sandbox as fake
from tests.fakes.agents import CHAT, TOKENIZER, FakeJudge, make_agent, python_tools, tool_call
from tests.fakes.sandbox import FakeSandbox
from tests.fakes.scripted_policy import Reply, ScriptedPolicy, check_trajectory, on_virtual_time, run_virtual

TASK = Task(id="t/1", source="s", question="2+2?", answer="4")
KEY = TrajectoryKey(seed=5, step=3, task_id="t/1", sibling=2)
PROMPT = CHAT.prompt_ids("2+2?")


class Judge:
    """Counts its calls; 1 for a text with "4" in it."""

    def __init__(self, answer: Callable[[], Outcome] | None = None) -> None:
        self.calls: list[tuple[str, str, bool, float | None]] = []
        self._answer = answer

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        self.calls.append((attempt.text, attempt.task.id, attempt.is_truncated, deadline))
        if self._answer is not None:
            return self._answer()
        return Scored(reward=float("4" in attempt.text and not attempt.is_truncated), method="fake")


class SlowJudge(Judge):
    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        await asyncio.sleep(0.5)
        return await super().score(attempt, deadline=deadline)


def agent(script: Any, sandbox: Any = None, judge: Any = None, **changes: Any) -> Any:
    sandbox = sandbox or FakeSandbox(lambda request: fake.ok(request.code.upper()))
    return make_agent(
        script,
        tools=python_tools(sandbox, max_parallel_calls=3),
        judge=judge or Judge(),
        **{"max_response_tokens": 2000, "max_turns": 4, "timeout_s": 100.0, **changes},
    )


def roll(made: Agent) -> Trajectory:
    """The trajectory, checked; its request must have been released, whatever happened."""
    trajectory = run_virtual(run_trajectory(made, TASK, KEY))
    check_trajectory(trajectory)
    assert (trajectory.key, trajectory.task) == (KEY, TASK)
    assert isinstance(made.inference, ScriptedPolicy)
    assert made.inference.released == ["s3/t/1/2"]
    load = made.inference.load()
    assert (load.used, load.running, load.waiting) == (0, 0, 0)
    return trajectory


def segments(trajectory: Trajectory) -> list[tuple[Origin, str]]:
    return [(s.origin, CHAT.decode(trajectory.ids[s.start : s.end].tolist())) for s in trajectory.segments]


def test_answer_at_once() -> None:
    made = agent(["it is 4"])
    t = roll(made)
    assert (t.finish_reason, t.outcome) == (FinishReason.answered, Scored(reward=1.0, method="fake"))
    assert segments(t)[1:] == [(Origin.policy, "it is 4<|im_end|>")]
    assert t.ids[: t.prompt_length].tolist() == list(PROMPT)
    assert made.judge.calls == [("it is 4", "t/1", False, 200.0)]
    assert not t.is_truncated and t.turns[0].stopped and t.results == ()


def test_the_prompt_shows_the_messages_before_the_question() -> None:
    context = ({"role": "system", "content": "You are a pirate."},)
    made = agent(["it is 4"])
    t = run_virtual(run_trajectory(made, dataclasses.replace(TASK, context=context), KEY))
    check_trajectory(t)
    assert t.ids[: t.prompt_length].tolist() == list(CHAT.prompt_ids("2+2?", context))
    assert "You are a pirate." in segments(t)[0][1]


def test_times_tell_the_policy_the_tools_and_the_judge_apart() -> None:
    class Slow(FakeSandbox):
        async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
            await asyncio.sleep(float(request.code))
            return await super().run(request, deadline=deadline)

    policy = ScriptedPolicy(
        lambda r: [f"{tool_call('2')}{tool_call('3')}{tool_call('bad')[:-20]}", "4"][r.turn - 1],
        TOKENIZER,
        token_s=0.01,
    )
    made = agent(policy, Slow(lambda request: fake.ok("")), judge=SlowJudge())
    t = roll(made)
    assert t.times is not None
    first, second = t.times.turns
    written = [0.01 * (turn.end - turn.start) for turn in t.turns]
    assert first.written == Span(0.0, pytest.approx(written[0]))
    done = first.written.end_s
    assert first.calls[0] == Span(pytest.approx(done), pytest.approx(done + 2))
    assert first.calls[1] == Span(pytest.approx(done), pytest.approx(done + 3))
    assert second.written == Span(pytest.approx(done + 3), pytest.approx(done + 3 + written[1]))
    end = second.written.end_s
    assert t.times.judged == Span(pytest.approx(end), pytest.approx(end + 0.5))
    assert t.times.ended_s == pytest.approx(end + 0.5) and t.times.granted_s == 0.0
    assert t == dataclasses.replace(t, times=None), "when it happened is no part of what it is"


def test_tool_turn_between() -> None:
    made = agent([f"so {tool_call('a')}{tool_call('b')}", "4"])
    t = roll(made)
    suffix = "\n<|im_start|>user\n<tool_response>\nA\n</tool_response>\n<tool_response>\nB\n</tool_response>"
    assert segments(t)[1:] == [
        (Origin.policy, f"so {tool_call('a')}{tool_call('b')}<|im_end|>"),
        (Origin.tool, suffix + "<|im_end|>\n<|im_start|>assistant\n"),
        (Origin.policy, "4<|im_end|>"),
    ]
    assert t.finish_reason is FinishReason.answered and [r.text for r in t.results] == ["A", "B"]
    assert made.judge.calls[0][0] == f"so {tool_call('a')}{tool_call('b')}\n4"


def test_requests_only_grow_and_carry_the_same_noise_stream() -> None:
    made = agent([tool_call("a"), tool_call("b"), "4"])
    t = roll(made)
    assert isinstance(made.inference, ScriptedPolicy)
    requests = made.inference.requests
    assert len(requests) == 3
    for request, deadline in zip(requests, [None, 200.0, 200.0], strict=True):  # none before the first grant
        assert t.ids[: len(request.ids)].tolist() == list(request.ids)
        assert len(request.ids) + request.max_new_tokens == len(PROMPT) + 2000
        assert (request.seed, request.deadline) == (stream_of(KEY), deadline)
        assert request.stop_ids == CHAT.stop_ids
    assert requests[0].ids == tuple(PROMPT)


def test_tool_seeds_differ_between_turns_and_calls_and_from_the_tokens() -> None:
    sandbox = FakeSandbox({"a": fake.ok(), "b": fake.ok()})
    roll(agent([tool_call("a") + tool_call("b"), tool_call("a") + tool_call("b"), "4"], sandbox))
    seeds = [request.seed for request in sandbox.requests]
    assert len({*seeds, stream_of(KEY)}) == 5


def test_malformed_call_is_answered_and_the_loop_goes_on() -> None:
    t = roll(agent(["<tool_call>{", "4"]))
    assert (t.results[0].status, t.results[0].is_error) == ("malformed_call", True)
    assert "Failed to decode tool call" in segments(t)[2][1]
    assert isinstance(t.outcome, Scored)


# ---- every way to end ----


def test_turn_limit_leaves_the_last_call_unexecuted() -> None:
    sandbox = FakeSandbox({"a": fake.ok()})
    assert roll(agent([tool_call("a"), "4"], max_turns=2)).finish_reason is FinishReason.answered
    t = roll(agent([tool_call("a"), tool_call("a"), "4"], sandbox, max_turns=2))
    assert t.finish_reason is FinishReason.max_turns and t.is_truncated
    assert len(sandbox.requests) == 1 and len(t.turns) == 2
    assert t.turns[1].calls and t.turns[1].results == ()
    assert t.outcome == Scored(reward=0.0, method="fake")


def test_token_limit_cuts_the_turn() -> None:
    t = roll(agent([Reply(text=tool_call("a") + "4", stops=False)], max_response_tokens=150))
    assert t.finish_reason is FinishReason.max_tokens and t.response_length == 150
    assert t.turns[0].calls == () and not t.turns[0].stopped and t.is_truncated
    assert t.outcome == Scored(reward=0.0, method="fake")


@pytest.mark.parametrize(("room", "finish"), [(0, FinishReason.tool_budget), (1, FinishReason.max_tokens)])
def test_tool_text_that_leaves_no_room_is_not_appended(room: int, finish: FinishReason) -> None:
    """The response may be exactly full behind the policy's turn, never behind a tool's."""
    used = len(TOKENIZER.encode(tool_call("a"))) + 1 + len(CHAT.tool_suffix_ids(["A"]))
    t = roll(agent([tool_call("a"), "44"], max_response_tokens=used + room))
    assert t.finish_reason is finish and t.is_truncated
    assert [r.text for r in t.results] == ["A"], "the call was executed and is recorded"
    assert t.response_length == (used + room if room else len(TOKENIZER.encode(tool_call("a"))) + 1)


def test_long_tool_text_is_cut_for_the_policy_and_kept_in_the_record() -> None:
    t = roll(agent([tool_call("a"), "4"], FakeSandbox({"a": fake.ok("x" * 999)}), max_tool_tokens=40))
    (_, shown) = segments(t)[2]
    assert CUT_MARKER in shown and shown.count("x") <= 40
    assert t.results[0].text == "x" * 999


# ---- our failures ----


def failed(t: Trajectory) -> tuple[str, bool]:
    assert isinstance(t.outcome, Failed)
    return t.outcome.kind, t.outcome.retryable


def test_inference_error_is_data() -> None:
    error = InferenceError("engine_stopped", "gone", retryable=False)
    made = agent([tool_call("a"), Reply(error=error)])
    t = roll(made)
    assert failed(t) == ("engine_stopped", False)
    assert t.finish_reason is FinishReason.aborted and not t.is_truncated
    assert made.judge.calls == []


def test_prompt_that_fails_leaves_the_prompt() -> None:
    t = roll(agent([Reply(error=InferenceError("too_long", "x", retryable=False))]))
    assert t.ids.tolist() == list(PROMPT) and t.turns == () and failed(t) == ("too_long", False)


@pytest.mark.parametrize("retryable", [False, True])
def test_sandbox_error_is_data_and_never_text(retryable: bool) -> None:
    sandbox = FakeSandbox({"a": SandboxError("the zygote died", kind="zygote_died", retryable=retryable)})
    made = agent([tool_call("a") + tool_call("a"), "4"], sandbox)
    t = roll(made)
    assert failed(t) == ("zygote_died", retryable)
    assert "zygote" not in CHAT.decode(t.ids.tolist()) and t.results == () and made.judge.calls == []


@pytest.mark.parametrize(
    ("listens", "pause_s", "kind"),
    [(True, 0.0, "policy_timeout"), (False, 0.0, "trajectory_timeout"), (True, 1.5, "trajectory_timeout")],
)
def test_only_a_policy_at_work_until_the_end_has_itself_to_blame(listens: bool, pause_s: float, kind: str) -> None:
    """Tokens each 0.05 s up to a clock of 10 s; a pause of 1.5 s may be an outage."""
    replies = [Reply(text=tool_call("a")), Reply(text="x" * 500, delay_s=pause_s)]
    policy = ScriptedPolicy(lambda r: replies[r.turn - 1], TOKENIZER, token_s=0.05)
    made = dataclasses.replace(agent(policy, timeout_s=10.0), listens=listens)
    t = roll(made)
    assert failed(t) == (kind, True) and len(t.turns) == 1
    assert isinstance(t.outcome, Failed) and "10.0 s" in t.outcome.detail


@pytest.mark.parametrize("whose", ["tool", "judge"])
def test_a_clock_that_ends_at_a_hung_tool_or_at_the_judge_blames_nobody(whose: str) -> None:
    class Slow(FakeSandbox):
        async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
            assert deadline is not None and 20.0 <= deadline < 22.0, "one limit behind the trajectory's own"
            await asyncio.sleep(3600.0)
            raise AssertionError

    text = "x" * 98 if whose == "judge" else tool_call("a")
    policy = ScriptedPolicy(lambda _: text, TOKENIZER, token_s=0.1 if whose == "judge" else 0.01)
    made = dataclasses.replace(agent(policy, Slow({}), judge=SlowJudge(), timeout_s=10.0), listens=True)
    t = roll(made)
    assert failed(t) == ("trajectory_timeout", True)
    assert (t.finish_reason is FinishReason.answered) == (whose == "judge")


def test_judge_that_takes_too_long_or_fails() -> None:
    def late() -> Outcome:
        raise TimeoutError

    t = roll(agent(["4"], judge=Judge(late)))
    assert failed(t) == ("deadline", True) and t.finish_reason is FinishReason.answered
    lost = Failed(kind="judge", retryable=True, detail="x")
    assert roll(agent(["4"], judge=Judge(lambda: lost))).outcome is lost


@pytest.mark.parametrize("at_s", [0.0, 0.5])
@on_virtual_time
async def test_abort_from_outside_is_a_retryable_failure(at_s: float) -> None:
    policy = ScriptedPolicy(lambda _: Reply(text="abcdef", stops=False), TOKENIZER, token_s=0.1)
    running = asyncio.create_task(run_trajectory(agent(policy), TASK, KEY))
    await asyncio.sleep(at_s + 0.05)
    await policy.abort("s3/t/1/2")
    t = await running
    check_trajectory(t)
    assert failed(t) == ("aborted", True)
    assert len(t.turns) == 1 and t.turns[0].text == "abcdef"[: int(at_s * 10)] and not t.turns[0].stopped


@on_virtual_time
async def test_bug_is_raised_and_cancellation_passes_and_both_release() -> None:
    made = agent(["bug"], judge=FakeJudge())
    with pytest.raises(KeyError, match="a bug"):
        await run_trajectory(made, TASK, KEY)
    assert made.inference.released == ["s3/t/1/2"]
    made = agent([Reply(text="4", delay_s=50.0)])
    running = asyncio.create_task(run_trajectory(made, TASK, KEY))
    await asyncio.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert made.inference.released == ["s3/t/1/2"]


@on_virtual_time
async def test_version_spans_follow_a_publish_between_and_inside_turns() -> None:
    policy = ScriptedPolicy(lambda r: [tool_call("a"), "4444"][r.turn - 1], TOKENIZER, token_s=1.0)
    first_turn = len(TOKENIZER.encode(tool_call("a"))) + 1
    running = asyncio.create_task(run_trajectory(agent(policy, timeout_s=1000.0), TASK, KEY))
    await asyncio.sleep(first_turn + 2.5)
    await policy.publish(7)
    t = await running
    check_trajectory(t)
    assert [(s.end - s.start, s.version) for s in t.version_spans] == [(first_turn, 0), (2, 0), (3, 7)]


# ---- a live interpreter ----


def cell(code: str) -> str:
    return tool_call(code, JUPYTER_TOOL)


def notebook_agent(script: Any, sandbox: Any, judge: Any = None, **limits: Any) -> Any:
    tools = Dispatcher(
        tools=[JupyterTool(limits=Limits(), flavour="stdlib", style="brief")], sandbox=sandbox, max_parallel_calls=3
    )
    return dataclasses.replace(agent(script, judge=judge, **limits), tools=tools)


def test_turns_share_an_interpreter_that_is_closed_before_the_judge() -> None:
    sandbox = FakeSandbox(lambda request: fake.ok(request.code))

    def judged() -> Outcome:
        assert [session.lost for session in sandbox.sessions] == ["closed"]
        return Scored(reward=1.0, method="fake")

    t = roll(notebook_agent([cell("a") + cell("b"), cell("c"), "4"], sandbox, Judge(judged)))
    assert [session.cells for session in sandbox.sessions] == [["a", "b", "c"]]
    assert [r.text for r in t.results] == ["a", "b", "c"]
    assert {request.seed for request in sandbox.requests} == {stream_of(KEY, purpose="tools")}


LOST = SandboxError("x", kind="zygote_died", retryable=True)
ENDS: dict[str, tuple[list[Any], dict[str, Any], type[BaseException] | None]] = {
    "answered": ([cell("a"), "4"], {}, None),
    "max_turns": ([cell("a"), cell("a")], {"max_turns": 2}, None),
    "tool_budget": ([cell("a")], {"max_response_tokens": len(TOKENIZER.encode(cell("a"))) + 2}, None),
    "inference": ([cell("a"), Reply(error=InferenceError("engine_stopped", "x", retryable=False))], {}, None),
    "sandbox": ([cell("a") + cell("lost")], {}, None),
    "deadline": ([cell("a"), Reply(text="4", delay_s=1e6)], {}, None),
    "bug": ([cell("a"), Reply(error=KeyError("a bug"))], {}, KeyError),
    "cancelled": ([cell("a"), Reply(text="4", delay_s=50.0)], {}, asyncio.CancelledError),
    "cancelled in a cell": ([cell("a"), cell("hang")], {}, asyncio.CancelledError),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_interpreter_ends_with_the_trajectory_however_it_ends(end: str) -> None:
    replies, limits, error = ENDS[end]

    class Sandbox(FakeSandbox):
        async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
            if request.code == "hang":
                await asyncio.Event().wait()
            return await super().run(request, deadline=deadline)

    sandbox = Sandbox({"a": fake.ok("1"), "lost": LOST})
    made = notebook_agent(replies, sandbox, **limits)

    async def main() -> None:
        running = asyncio.create_task(run_trajectory(made, TASK, KEY))
        if end.startswith("cancelled"):
            await asyncio.sleep(10)
            assert [session.lost for session in sandbox.sessions] == [None]
            running.cancel()
        await running

    if error is None:
        run_virtual(main())
    else:
        with pytest.raises(error):
            run_virtual(main())
    assert [session.lost for session in sandbox.sessions] == ["closed"]


def test_a_state_that_cannot_be_built_again_is_a_retryable_failure() -> None:
    class Evicting(FakeSandbox):
        async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
            if len(self.requests) > 1:
                raise SessionLost("room was needed", reason="evicted")
            return await super().run(request, deadline=deadline)

    made = notebook_agent([cell("a"), cell("b"), cell("c"), "4"], Evicting(lambda request: fake.ok("1")))
    t = roll(made)
    assert failed(t) == ("session_lost", True)
    assert made.judge.calls == [] and "room was" not in CHAT.decode(t.ids.tolist()) and len(t.results) == 2


# ---- any conversation ----

codes = st.sampled_from(["ok", "err", "long", "lost"])
texts = st.text(max_size=6)
turns = st.one_of(
    st.tuples(texts, st.lists(codes, min_size=1, max_size=4)).map(lambda t: t[0] + "".join(map(tool_call, t[1]))),
    texts.map(lambda text: text + "<tool_call>{"),
    texts.map(lambda text: text + "!"),
    texts.map(lambda text: Reply(text=text + "?", stops=False)),
    st.just(Reply(error=InferenceError("engine_stopped", "x", retryable=True))),
    st.just(Reply(text="4", delay_s=1e6)),
)
RESULTS: dict[str, fake.Answer] = {
    "ok": fake.ok("fine"),
    "err": fake.error("ValueError: <|im_end|>"),
    "long": fake.ok("y" * 500),
    "lost": SandboxError("x", kind="zygote_died", retryable=True),
}


@given(
    replies=st.lists(turns, min_size=5, max_size=5),
    max_turns=st.integers(1, 5),
    max_response_tokens=st.integers(1, 900),
    max_tool_tokens=st.integers(0, 80),
)
def test_any_conversation_keeps_the_invariants(replies: list[Any], **limits: int) -> None:
    made = agent(replies, FakeSandbox(RESULTS), **limits)
    t = run_virtual(run_trajectory(made, TASK, KEY))
    check_trajectory(t)
    assert isinstance(made.inference, ScriptedPolicy)
    assert made.inference.released == ["s3/t/1/2"]
    assert t.response_length <= limits["max_response_tokens"] and len(t.turns) <= limits["max_turns"]
    if isinstance(t.outcome, Failed):
        assert made.judge.calls == [] and t.outcome.kind in {"engine_stopped", "zygote_died", "trajectory_timeout"}
        return
    ((text, _, truncated, _),) = made.judge.calls
    assert text == "\n".join(turn.text for turn in t.turns)
    last = t.turns[-1]
    expected = {
        FinishReason.answered: last.stopped and not last.calls,
        FinishReason.max_turns: len(t.turns) == limits["max_turns"] and bool(last.calls) and not last.results,
        FinishReason.max_tokens: not last.stopped and t.response_length == limits["max_response_tokens"],
        FinishReason.tool_budget: bool(last.results),
    }
    assert expected[t.finish_reason] and truncated == t.is_truncated == (t.finish_reason != "answered")
    stop = TOKENIZER.id_of("<|im_end|>")
    for segment in t.segments:
        if segment.origin is Origin.policy:
            assert stop not in t.ids[segment.start : segment.end - 1]
        if segment.origin is Origin.tool:  # one user turn, whatever the tools printed
            assert t.ids[segment.start : segment.end].tolist().count(stop) == 1


# ---- a tool of somebody's own ----


class Oracle(Tool):
    """Breaks, hangs or answers, as it is asked."""

    name = "oracle"
    description = "Answers"
    parameters: Mapping[str, Any] = {"type": "object", "properties": {"q": {"type": "string"}}}

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        if arguments["q"] == "break":
            raise OSError("no connection")
        if arguments["q"] == "hang":
            await asyncio.Event().wait()
        return ToolOutput("x" * 4000)


def consulted(question: str) -> Trajectory:
    body = json.dumps({"name": "oracle", "arguments": {"q": question}})
    tools = Dispatcher(tools=[Oracle()], timeout_s=5.0)
    made = agent([f"<tool_call>{body}</tool_call>", "it is 4"])
    return roll(dataclasses.replace(made, tools=tools))


def test_a_tool_that_breaks_fails_the_trajectory_and_one_that_hangs_does_not() -> None:
    broken = consulted("break")
    assert isinstance(broken.outcome, Failed) and not broken.results
    assert (broken.outcome.kind, broken.outcome.retryable) == ("tool_failed", False)
    assert broken.outcome.detail.startswith("oracle: OSError: no connection (test_rollout.py:")
    hung = consulted("hang")
    assert hung.outcome == Scored(reward=1.0, method="fake")
    assert [(r.status, r.is_error) for r in hung.results] == [("timeout", True)]


def test_what_a_tool_returns_is_cut_in_tokens_with_one_marker() -> None:
    t = consulted("much")
    (told,) = [text for origin, text in segments(t) if origin is Origin.tool]
    assert told.count(CUT_MARKER) == 1 and len(told) < 400 and len(t.results[0].text) == 4000
