"""Who gets 1, who gets 0, and who gets nothing because the grader failed."""

import asyncio
import contextlib
import dataclasses
import io
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reasoning_gym.factory import DATASETS, get_score_answer_fn

from rocstar.engine.types import Attempt, Failed, Outcome, Scored, Task, Turn
from rocstar.sandbox.child.flavours import FLAVOURS
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, SandboxError, Status
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.data import reasoning_gym_tasks
from rocstar.train.tasks.reward import DECIMAL_FAMILIES, MAX_ANSWER_CHARACTERS, MathJudge
from tests.fakes.sandbox import FakeSandbox, ok

from . import asked


def run_here(request: ExecRequest) -> ExecResult:
    """Run the grader's program in this process: real verdicts, no isolation, trusted predictions only."""
    stdin, stdout, digits = sys.stdin, io.StringIO(), sys.get_int_max_str_digits()
    sys.stdin = io.StringIO(request.stdin)
    try:
        with contextlib.redirect_stdout(stdout):
            exec(compile(request.code, "grader", "exec"), {"__name__": "__main__"})
    finally:
        sys.stdin = stdin
        sys.set_int_max_str_digits(digits)
        logging.disable(logging.NOTSET)
    return ok(stdout.getvalue())


UNUSED = FakeSandbox({})
"""Refuses every request: these cases are decided without the sandbox."""


def task_of(answer: str) -> Task:
    return Task(id="t", source="s", question="q", answer=answer)


def attempt(text: str, task: Task | str, *, truncated: bool = False) -> Attempt:
    task = task_of(task) if isinstance(task, str) else task
    turn = Turn(start=0, end=1, text=text, stopped=not truncated)
    return Attempt(task=task, turns=(turn,), is_truncated=truncated)


def text_of(prediction: str) -> str:
    return f"So.\n<answer>\\boxed{{{prediction}}}</answer>"


async def judge(sandbox: Any, prediction: str, task: Task | str, **options: Any) -> Outcome:
    task = task_of(task) if isinstance(task, str) else task
    return await MathJudge(sandbox).score(attempt(text_of(prediction), task, **options), deadline=None)


@pytest.mark.parametrize(
    ("prediction", "truth", "expected"),
    [
        ("42", "42", Scored(reward=1.0, method="exact")),
        ("$42$", "42", Scored(reward=1.0, method="exact")),
        ("042", "42", Scored(reward=1.0, method="numeric")),
        ("42.0", "42", Scored(reward=1.0, method="numeric")),
        ("4200", "42", Scored(reward=0.0, method="numeric")),
        ("0.42", "42", Scored(reward=0.0, method="numeric")),
        ("12346", "12345", Scored(reward=0.0, method="numeric")),
        ("100001", "100000", Scored(reward=0.0, method="numeric")),
        ("42\\%", "42", Scored(reward=0.0, method="numeric")),
        ("silent", "listen", Scored(reward=0.0, method="text")),
        ("41} or \\boxed{42", "41", Scored(reward=0.0, method="numeric")),
        ("9" * (MAX_ANSWER_CHARACTERS + 1), "9", Scored(reward=0.0, method="too_long")),
    ],
)
async def test_clear_cases_are_decided_without_a_grader(prediction: str, truth: str, expected: Scored) -> None:
    assert await judge(UNUSED, prediction, truth) == expected


@pytest.mark.parametrize(
    ("text", "method"),
    [("bla bla 17 and 42", "no_answer"), ("<answer> 42 </answer>", "no_box"), ("\\boxed{42}", "no_answer")],
)
async def test_what_strict_mode_cannot_read_is_scored_0(text: str, method: str) -> None:
    outcome = await MathJudge(UNUSED).score(attempt(text, "42"), deadline=None)
    assert outcome == Scored(reward=0.0, method=method)


async def test_a_truncated_trajectory_is_scored_0_even_with_the_right_answer() -> None:
    outcome = await judge(UNUSED, "42", "42", truncated=True)
    assert outcome == Scored(reward=0.0, method="truncated")


@pytest.mark.parametrize(
    ("prediction", "truth", "reward"),
    [
        ("(a+c)(c+b)(b+a)", "(a+b)(b+c)(c+a)", 1.0),
        ("2\\sqrt{13}, \\sqrt{117}", "3\\sqrt{13}, \\sqrt{52}", 1.0),
        ("2\\sqrt{13}, \\sqrt{118}", "3\\sqrt{13}, \\sqrt{52}", 0.0),
        ("x^2", "x^3", 0.0),
        ("\\frac{1}{2^{98}}", "\\frac{1}{2^{99}}", 0.0),
        ("3.14159265358979", "\\pi", 0.0),
    ],
)
async def test_expressions_go_to_the_grader_once(prediction: str, truth: str, reward: float) -> None:
    sandbox = FakeSandbox(run_here)
    assert await judge(sandbox, prediction, truth) == Scored(reward=reward, method="symbolic")
    assert [request.flavour for request in sandbox.requests] == ["verifier"]


# ---------------------------------------------------------------- reasoning-gym


async def test_a_default_scorer_needs_no_grader() -> None:
    (task,) = reasoning_gym_tasks("gcd", {}, size=1, seed=0)
    assert await judge(UNUSED, f" {task.answer} ", task) == Scored(reward=1.0, method="exact")
    wrong = await judge(UNUSED, task.answer + "0", task)
    assert wrong == Scored(reward=0.0, method="reasoning_gym")


@pytest.mark.parametrize("family", sorted(DECIMAL_FAMILIES))
@given(noise=st.text(alphabet="0123456789+-.,eE_ $NaIinfsx", max_size=8))
def test_the_decimal_shortcut_agrees_with_the_family(family: str, noise: str) -> None:
    (task,) = reasoning_gym_tasks(family, {}, size=1, seed=0)
    for prediction in (noise, noise + task.answer, task.answer + noise, f"{task.answer}.0", f"${task.answer}"):
        scored = get_score_answer_fn(family)(prediction.strip(), task.meta["entry"])
        outcome = asyncio.run(judge(UNUSED, prediction, task))
        assert isinstance(outcome, Scored)
        assert outcome.reward == float(scored == 1.0), prediction


@pytest.mark.parametrize("family", ["countdown", "knights_knaves", "rearc"])
async def test_a_family_of_its_own_is_asked_with_its_own_entry(family: str) -> None:
    (task,) = reasoning_gym_tasks(family, {}, size=1, seed=0)
    assert DATASETS[family][0].score_answer is not DATASETS["gcd"][0].score_answer
    sandbox = FakeSandbox(run_here)
    unequal = dataclasses.replace(task, answer="")  # so that the grader, not equality, has to say 1
    outcome = await judge(sandbox, task.answer, unequal)
    assert outcome == Scored(reward=1.0, method="reasoning_gym")
    assert await judge(sandbox, "nonsense", task) == Scored(reward=0.0, method="reasoning_gym")


async def test_an_answer_that_makes_the_scorer_raise_is_not_1(monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = reasoning_gym_tasks("countdown", {}, size=1, seed=0)

    def raising(self: object, answer: str, entry: dict[str, Any]) -> float:
        raise ValueError(answer)

    monkeypatch.setattr(DATASETS["countdown"][0], "score_answer", raising)
    assert await judge(FakeSandbox(run_here), "1", task) == Scored(reward=0.0, method="reasoning_gym")


async def test_an_empty_box_never_equals_a_missing_oracle_answer() -> None:
    (task,) = reasoning_gym_tasks("graph_color", {}, size=1, seed=0)
    assert task.answer == ""
    assert await judge(FakeSandbox(run_here), "", task) == Scored(reward=0.0, method="reasoning_gym")


@pytest.mark.parametrize("column", ["entry", "family"])
async def test_a_column_of_a_users_row_is_no_mark_of_reasoning_gym(column: str) -> None:
    task = Task(id="t", source="gcd", question="q", answer="1", meta={column: {}})
    assert await judge(UNUSED, "1", task) == Scored(reward=1.0, method="exact")
    assert await judge(UNUSED, "2", task) == Scored(reward=0.0, method="numeric")


async def test_a_family_that_is_gone_is_an_error() -> None:
    task = Task(id="t", source="s", question="q", answer="1", meta={"family": "gone", "entry": {}})
    with pytest.raises(ConfigError, match="'gone'"):
        await judge(UNUSED, "2", task)


# ---------------------------------------------------------------- failures of ours


EXPRESSION, TRUTH = "\\sqrt{12}", "2\\sqrt{3}"
READ = "truths read\n"


def ending(stdout: str, status: Status = Status.OK, *, cpu_s: float = 4.0) -> Callable[[ExecRequest], ExecResult]:
    killed = {} if status is Status.OK else {"exit_code": None, "signal": 9}
    result = dataclasses.replace(ok(stdout), status=status, cpu_s=cpu_s, wall_s=6.0, **killed)
    return lambda _: result


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.OK])
async def test_a_prediction_that_is_too_much_is_wrong(status: Status) -> None:
    outcome = await judge(FakeSandbox(ending(READ, status)), EXPRESSION, TRUTH)
    assert outcome == Scored(reward=0.0, method="grader_limit")


@pytest.mark.parametrize("stdout", ["", "1\n", "\n0123456789abcdef0123456789abcdef 1\n"])
async def test_a_verdict_without_the_nonce_of_the_call_is_none(stdout: str) -> None:
    outcome = await judge(FakeSandbox(ending(READ + stdout)), EXPRESSION, TRUTH)
    assert outcome == Scored(reward=0.0, method="grader_limit")


@pytest.mark.parametrize("status", Status)
async def test_a_truth_that_is_too_much_is_our_failure(status: Status) -> None:
    outcome = await judge(FakeSandbox(ending("", status)), EXPRESSION, TRUTH)
    kind = "verifier_no_verdict" if status is Status.OK else f"verifier_{status}"
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.retryable) == (kind, False)


async def test_a_grader_that_got_no_processor_is_our_failure_and_worth_another_try() -> None:
    outcome = await judge(FakeSandbox(ending(READ, Status.TIMEOUT, cpu_s=0.1)), EXPRESSION, TRUTH)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.retryable) == ("verifier_timeout", True)


async def test_a_sandbox_error_keeps_its_kind() -> None:
    died = SandboxError("the zygote died", kind="zygote_died", retryable=True)
    outcome = await judge(FakeSandbox(lambda _: died), EXPRESSION, TRUTH)
    assert outcome == Failed(kind="verifier_zygote_died", retryable=True, detail="the zygote died")


async def test_every_call_has_a_nonce_of_its_own_that_is_not_in_the_job() -> None:
    sandbox = FakeSandbox(run_here)
    await judge(sandbox, EXPRESSION, TRUTH)
    await judge(sandbox, EXPRESSION, TRUTH)
    first, second = (request.stdin.splitlines() for request in sandbox.requests)
    assert first[:2] == second[:2] and first[2] != second[2]


async def test_the_wall_clock_and_the_deadline_reach_the_sandbox() -> None:
    seen: list[tuple[float, float | None]] = []

    class Watching(FakeSandbox):
        async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
            seen.append((request.limits.wall_s, deadline))
            return await super().run(request)

    judge_ = MathJudge(Watching(run_here), wall_s=2.5)
    await judge_.score(attempt(text_of(EXPRESSION), TRUTH), deadline=123.0)
    assert seen == [(2.5, 123.0)]


# ---------------------------------------------------------------- the real sandbox


async def test_the_real_verifier_gives_verdicts_and_is_killed_when_it_hangs() -> None:
    (countdown,) = reasoning_gym_tasks("countdown", {}, size=1, seed=0)
    unequal = dataclasses.replace(countdown, answer="")
    async with SandboxPool(("verifier",)) as pool:
        patient, hasty = MathJudge(pool, wall_s=30.0), MathJudge(pool, wall_s=3.0)
        for grader, prediction, task, reward, method in (
            (patient, EXPRESSION, task_of(TRUTH), 1.0, "symbolic"),
            (patient, "x^2", task_of("x^3"), 0.0, "symbolic"),
            (hasty, "x^{9999999999} + 9^{9999999999}", task_of("\\sqrt{2}^x"), 0.0, "grader_limit"),
            (patient, "\\frac{2x}{4}", task_of("x/2"), 1.0, "symbolic"),
            (patient, countdown.answer, unequal, 1.0, "reasoning_gym"),
        ):
            if method == "reasoning_gym" and method not in FLAVOURS["verifier"].modules:
                continue
            outcome = await asked.score(grader, attempt(text_of(prediction), task))
            assert outcome == Scored(reward=reward, method=method), prediction
