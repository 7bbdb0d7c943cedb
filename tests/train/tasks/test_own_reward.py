"""A recipe's own reward: what it may give, how its failures end, and what is refused before a run."""

import asyncio
import logging
import math
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.types import Attempt, Failed, Outcome, Scored, Task, ToolCall, ToolResult, Turn
from rocstar.sandbox.types import SandboxError
from rocstar.train.recipe.config import RewardConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks import own_reward
from rocstar.train.tasks.own_reward import FunctionReward, Reward, as_reward, check_reward, make_judge
from rocstar.train.tasks.reward import MathJudge
from tests.fakes.sandbox import FakeSandbox

TASK = Task(id="t", source="s", question="q", answer="42", meta={"level": 3})
DIED = SandboxError("the supervisor died", kind="supervisor_died", retryable=True)
NO_SANDBOX = FakeSandbox({}, otherwise=DIED)


def attempt(*texts: str, truncated: bool = False) -> Attempt:
    turns = tuple(Turn(start=k, end=k + 1, text=text, stopped=True) for k, text in enumerate(texts))
    return Attempt(task=TASK, turns=turns, is_truncated=truncated)


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., RewardConfig]:
    """Write a function `score` into a file; return the recipe's section that names it."""

    def write(source: str, **section: Any) -> RewardConfig:
        path = tmp_path / "own.py"
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        return RewardConfig(kind=f"{path}:score", **section)

    return write


async def score(config: RewardConfig, tried: Attempt | None = None, *, left_s: float = math.inf) -> Outcome:
    check_reward(config)
    deadline = None if math.isinf(left_s) else asyncio.get_running_loop().time() + left_s
    return await make_judge(config, NO_SANDBOX).score(tried or attempt("42"), deadline=deadline)


@pytest.mark.parametrize(
    ("given", "value", "is_correct"),
    [
        (True, 1.0, True),
        (False, 0.0, False),
        (1, 1.0, True),
        (0.5, 0.5, False),
        (-2, -2.0, False),
        (1.5, 1.5, True),
        (Reward(value=0.2, is_correct=True), 0.2, True),
    ],
)
def test_what_a_function_may_give(given: object, value: float, is_correct: bool) -> None:
    reward = as_reward(given)
    assert (reward.value, reward.is_correct) == (value, is_correct)


@pytest.mark.parametrize("given", [None, "1", math.nan, math.inf, [1.0], (1.0, True)])
def test_what_is_no_reward(given: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        as_reward(given)


@pytest.mark.parametrize("change", [{"value": math.nan}, {"value": True}, {"is_correct": 1}, {"method": None}])
def test_a_reward_is_a_finite_number_and_a_bool(change: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        Reward(**{"value": 1.0, "is_correct": True} | change)


@pytest.mark.parametrize("prefix", ["", "async "])
async def test_the_function_sees_the_attempt_and_its_arguments(own: Any, prefix: str) -> None:
    config = own(
        f"""
        from rocstar.train.tasks.own_reward import Reward
        {prefix}def score(attempt, *, factor, names):
            seen = [attempt.task.meta["level"], attempt.text, attempt.final_text, attempt.is_truncated]
            seen += [(c.name, r.status) for turn in attempt.turns for c, r in zip(turn.calls, turn.results)]
            return Reward(value=factor / 4, is_correct=True, method=repr([*seen, names]))
        """,
        args={"factor": 1, "names": ["a"]},
    )
    calls, results = ((ToolCall(name="python", arguments={}),), (ToolResult(status="ok", is_error=False, text="4"),))
    turns = (
        Turn(start=0, end=1, text="I call", stopped=True, calls=calls, results=results),
        Turn(start=2, end=3, text="42", stopped=True),
    )
    outcome = await score(config, Attempt(task=TASK, turns=turns, is_truncated=False))
    seen = "[3, 'I call\\n42', '42', False, ('python', 'ok'), ['a']]"
    assert outcome == Scored(reward=0.25, is_correct=True, method=seen)


async def test_a_truncated_attempt_is_never_correct(own: Any) -> None:
    config = own("def score(attempt): return 1 if attempt.is_truncated else 0")
    assert await score(config, attempt("42", truncated=True)) == Scored(reward=1.0, is_correct=False, method="own")
    assert attempt().final_text == attempt().text == ""


@pytest.mark.parametrize("prefix", ["", "async "])
@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("{}['missing']", "KeyError: 'missing'"),
        ("raise StopIteration", "StopIteration"),
        ("exit(3)", "SystemExit: 3"),
        ("return float('nan')", "finite number"),
        ("return 'good'", "must give a Reward, a number or a bool"),
    ],
)
async def test_a_function_that_fails_costs_its_trajectory(
    own: Any, caplog: pytest.LogCaptureFixture, prefix: str, body: str, told: str
) -> None:
    config = own(f"{prefix}def score(attempt):\n    {body}\n")
    with caplog.at_level(logging.WARNING, logger="rocstar"):
        judge = make_judge(config, NO_SANDBOX)
        outcomes = [await judge.score(attempt(), deadline=None) for _ in range(3)]
    for outcome in outcomes:
        assert isinstance(outcome, Failed) and (outcome.kind, outcome.retryable) == ("reward_error", False)
        assert told in outcome.detail
    (record,) = caplog.records  # told once, whatever the number of trajectories
    assert told in record.getMessage() and "task t" in record.getMessage()
    if "raise" not in body and "return" not in body:
        assert "own.py" in record.getMessage() and "own_reward.py" not in record.getMessage()


async def test_a_coroutine_that_cancels_itself_costs_its_trajectory(own: Any) -> None:
    outcome = await score(own("import asyncio\nasync def score(attempt): raise asyncio.CancelledError"))
    assert isinstance(outcome, Failed) and outcome.kind == "reward_error"


HANGING = """
import asyncio, threading
gate, ended = threading.Event(), threading.Event()
def score(attempt):
    gate.wait(300)
    ended.set()
    return True
"""
HANGING_ASYNC = """
import asyncio
async def score(attempt):
    await asyncio.get_running_loop().create_future()
"""
STUBBORN = """
import asyncio
gate = asyncio.Event()
async def score(attempt):
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        await gate.wait()
"""


def release(config: RewardConfig) -> None:
    own_reward.own_code.load(config.kind, field="reward.kind").__globals__["gate"].set()


@pytest.mark.parametrize("source", [HANGING, HANGING_ASYNC, STUBBORN])
async def test_a_function_that_hangs_is_left_at_its_deadline(own: Any, source: str) -> None:
    config = own(source, timeout_s=0.05)
    outcome = await score(config)
    assert isinstance(outcome, Failed) and (outcome.kind, outcome.retryable) == ("reward_timeout", False)
    assert "reward.timeout_s = 0.05" in outcome.detail
    if source is not HANGING_ASYNC:
        release(config)


async def test_the_deadline_of_the_trajectory_is_its_own(own: Any) -> None:
    config = own(HANGING, timeout_s=60.0)
    with pytest.raises(TimeoutError):
        await score(config, left_s=0.05)
    with pytest.raises(TimeoutError):
        await score(config, left_s=-1.0)
    release(config)


async def test_hanging_threads_are_bounded(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that a hanging call has is free again when that ends."""
    monkeypatch.setattr(own_reward.threads, "MAX_CALLS", 2)
    config = own(HANGING, timeout_s=0.05)
    judge = make_judge(config, NO_SANDBOX)
    before = threading.active_count()
    outcomes = await asyncio.gather(*(judge.score(attempt(), deadline=None) for _ in range(8)))
    assert {o.kind for o in outcomes if isinstance(o, Failed)} == {"reward_timeout"} and len(outcomes) == 8
    assert threading.active_count() <= before + 2
    release(config)
    patient = RewardConfig(kind=config.kind, timeout_s=60.0)
    assert isinstance(judge, FunctionReward)
    judge._config = patient
    assert await judge.score(attempt(), deadline=None) == Scored(reward=1.0, is_correct=True, method="own")


async def test_a_cancelled_trajectory_cancels_its_reward(own: Any) -> None:
    config = own(
        """
        import asyncio
        begun, ended = asyncio.Event(), []
        async def score(attempt):
            begun.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.append(True)
        """
    )
    there = own_reward.own_code.load(config.kind, field="reward.kind").__globals__
    work = asyncio.create_task(score(config))
    await there["begun"].wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await asyncio.sleep(0)
    assert there["ended"] == [True]


async def test_a_failure_of_the_sandbox_is_no_reward(own: Any) -> None:
    config = own(
        """
        from rocstar.sandbox.types import ExecRequest
        async def score(attempt, sandbox):
            return (await sandbox.run(ExecRequest(code=attempt.text))).status == "ok"
        """
    )
    outcome = await score(config)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.retryable) == ("reward_supervisor_died", True)


def test_the_default_is_the_mathematical_judge() -> None:
    assert isinstance(make_judge(RewardConfig(), NO_SANDBOX), MathJudge)
    check_reward(RewardConfig())


@pytest.mark.parametrize(
    ("source", "args", "told"),
    [
        ("import no_such_module", {}, "needs a module 'no_such_module' that is not installed"),
        ("def score(attempt:", {}, "SyntaxError"),
        ("raise SystemExit(2)", {}, "SystemExit"),
        ("def other(attempt): pass", {}, "the module has no 'score'; it defines other"),
        ("score = 3", {}, "is int, not a function"),
        ("class score: pass", {}, "not a function"),
        ("def score(): pass", {}, "too many positional arguments"),
        ("def score(attempt, *, need): pass", {}, "'need'"),
        ("def score(attempt): pass", {"more": 1}, "'more'"),
        ("def score(attempt, sandbox): pass", {}, "async def"),
        ("async def score(attempt, sandbox): pass", {"sandbox": 1}, "reward.args.sandbox"),
    ],
)
def test_what_cannot_be_called_is_refused_before_a_run(own: Any, source: str, args: Any, told: str) -> None:
    config = own(source, args=args)
    with pytest.raises(ConfigError) as error:
        check_reward(config)
    assert told in str(error.value) and "reward." in str(error.value)


def test_an_object_with_an_async_call_is_a_function(own: Any) -> None:
    config = own(
        """
        class Scorer:
            async def __call__(self, attempt, sandbox):
                return True
        score = Scorer()
        """
    )
    check_reward(config)
    assert asyncio.run(score(config)) == Scored(reward=1.0, is_correct=True, method="own")
