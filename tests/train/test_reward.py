"""Who gets 1, who gets 0, and who gets nothing because the grader failed."""

from __future__ import annotations

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

from rocstar.engine.types import Failed, Outcome, Scored, Task
from rocstar.sandbox.flavours import FLAVOURS
from rocstar.sandbox.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, SandboxError, Status
from rocstar.train.config import ConfigError
from rocstar.train.data import reasoning_gym_tasks
from rocstar.train.reward import DECIMAL_FAMILIES, MAX_ANSWER_CHARACTERS, Judge

OK = ExecResult(
    status=Status.OK,
    exit_code=0,
    signal=None,
    stdout="",
    stderr="",
    stdout_truncated=False,
    stderr_truncated=False,
    value=None,
    wall_s=0.0,
    cpu_s=0.0,
    peak_memory_bytes=0,
    isolation="none",
)


class PythonHere:
    """Runs the grader's program in this process: real verdicts, no isolation, trusted predictions only."""

    def __init__(self) -> None:
        self.requests: list[ExecRequest] = []

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        self.requests.append(request)
        stdin, stdout = sys.stdin, io.StringIO()
        sys.stdin = io.StringIO(request.stdin)
        try:
            with contextlib.redirect_stdout(stdout):
                exec(compile(request.code, "grader", "exec"), {"__name__": "__main__"})
        finally:
            sys.stdin = stdin
            logging.disable(logging.NOTSET)
        return dataclasses.replace(OK, stdout=stdout.getvalue())


class Answering:
    """Answers every request with what `reply` makes of it."""

    def __init__(self, reply: Callable[[ExecRequest], ExecResult]) -> None:
        self._reply = reply

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        return self._reply(request)


def never(request: ExecRequest) -> ExecResult:
    raise AssertionError("this must be decided without the sandbox")


def task_of(answer: str) -> Task:
    return Task(id="t", source="s", question="q", answer=answer)


def text_of(prediction: str) -> str:
    return f"So.\n<answer>\\boxed{{{prediction}}}</answer>"


async def judge(sandbox: Any, prediction: str, task: Task | str, **options: Any) -> Outcome:
    task = task_of(task) if isinstance(task, str) else task
    options = {"truncated": False, "deadline": None, **options}
    return await Judge(sandbox).score(text_of(prediction), task, **options)


@pytest.mark.parametrize(
    ("prediction", "truth", "expected"),
    [
        ("42", "42", Scored(reward=1.0, method="exact")),
        ("042", "42", Scored(reward=1.0, method="exact")),
        ("42.0", "42", Scored(reward=1.0, method="numeric")),
        ("4200", "42", Scored(reward=0.0, method="numeric")),
        ("0.42", "42", Scored(reward=0.0, method="numeric")),
        ("12346", "12345", Scored(reward=0.0, method="numeric")),
        ("100001", "100000", Scored(reward=0.0, method="numeric")),
        ("42\\%", "42", Scored(reward=0.0, method="percent")),
        ("silent", "listen", Scored(reward=0.0, method="text")),
        ("41} or \\boxed{42", "41", Scored(reward=0.0, method="numeric")),
        ("9" * (MAX_ANSWER_CHARACTERS + 1), "9", Scored(reward=0.0, method="too_long")),
    ],
)
async def test_clear_cases_are_decided_without_a_grader(
    prediction: str, truth: str, expected: Scored
) -> None:
    assert await judge(Answering(never), prediction, truth) == expected


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("bla bla 17 and 42", "no_answer"),
        ("<answer> 42 </answer>", "no_box"),
        (text_of("42") + text_of("42"), "several_answers"),
        ("\\boxed{42}", "no_answer"),
    ],
)
async def test_what_strict_mode_cannot_read_is_scored_0(text: str, method: str) -> None:
    outcome = await Judge(Answering(never)).score(text, task_of("42"), truncated=False, deadline=None)
    assert outcome == Scored(reward=0.0, method=method)


async def test_a_truncated_trajectory_is_scored_0_even_with_the_right_answer() -> None:
    outcome = await judge(Answering(never), "42", "42", truncated=True)
    assert outcome == Scored(reward=0.0, method="truncated")


@pytest.mark.parametrize(
    ("prediction", "truth", "reward"),
    [
        ("84/2", "42", 1.0),
        ("6\\times7", "42", 1.0),
        ("x = 42", "42", 1.0),
        ("\\frac12", "0.5", 1.0),
        ("(a+c)(c+b)(b+a)", "(a+b)(b+c)(c+a)", 1.0),
        ("50\\%", "25\\% + 25\\%", 1.0),
        ("1, 2, 42", "42", 0.0),
        ("41 or 42", "42", 0.0),
        ("", "42", 0.0),
        ("\\frac13", "0.5", 0.0),
        ("x^2", "x^3", 0.0),
    ],
)
async def test_other_forms_go_to_math_verify(prediction: str, truth: str, reward: float) -> None:
    sandbox = PythonHere()
    assert await judge(sandbox, prediction, truth) == Scored(reward=reward, method="math_verify")
    assert [request.flavour for request in sandbox.requests] == ["verifier"]


# ---------------------------------------------------------------- reasoning-gym


async def test_a_default_scorer_needs_no_grader() -> None:
    (task,) = reasoning_gym_tasks("gcd", {}, size=1, seed=0)
    assert await judge(Answering(never), f" {task.answer} ", task) == Scored(reward=1.0, method="exact")
    wrong = await judge(Answering(never), task.answer + "0", task)
    assert wrong == Scored(reward=0.0, method="reasoning_gym")


@pytest.mark.parametrize("family", sorted(DECIMAL_FAMILIES))
@given(noise=st.text(alphabet="0123456789+-.,eE_ $NaIinfsx", max_size=8))
def test_the_decimal_shortcut_agrees_with_the_family(family: str, noise: str) -> None:
    (task,) = reasoning_gym_tasks(family, {}, size=1, seed=0)
    for prediction in (
        noise,
        noise + task.answer,
        task.answer + noise,
        f"{task.answer}.0",
        f"${task.answer}",
    ):
        scored = get_score_answer_fn(family)(prediction.strip(), task.meta["entry"])
        outcome = asyncio.run(judge(Answering(never), prediction, task))
        assert isinstance(outcome, Scored)
        assert outcome.reward == float(scored == 1.0), prediction


@pytest.mark.parametrize("family", ["countdown", "knights_knaves", "rearc"])
async def test_a_family_of_its_own_is_asked_with_its_own_entry(family: str) -> None:
    (task,) = reasoning_gym_tasks(family, {}, size=1, seed=0)
    assert DATASETS[family][0].score_answer is not DATASETS["gcd"][0].score_answer
    sandbox = PythonHere()
    unequal = dataclasses.replace(task, answer="")  # so that the grader, not equality, has to say 1
    outcome = await judge(sandbox, task.answer, unequal)
    assert outcome == Scored(reward=1.0, method="reasoning_gym")
    assert await judge(sandbox, "nonsense", task) == Scored(reward=0.0, method="reasoning_gym")


async def test_an_answer_that_makes_the_scorer_raise_is_not_1(monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = reasoning_gym_tasks("countdown", {}, size=1, seed=0)

    def raising(self: object, answer: str, entry: dict[str, Any]) -> float:
        raise RecursionError(answer)

    monkeypatch.setattr(DATASETS["countdown"][0], "score_answer", raising)
    assert await judge(PythonHere(), "1", task) == Scored(reward=0.0, method="reasoning_gym")


async def test_an_empty_box_never_equals_a_missing_oracle_answer() -> None:
    (task,) = reasoning_gym_tasks("graph_color", {}, size=1, seed=0)
    assert task.answer == ""
    assert await judge(PythonHere(), "", task) == Scored(reward=0.0, method="reasoning_gym")


@pytest.mark.parametrize("column", ["entry", "family"])
async def test_a_column_of_a_users_row_is_no_mark_of_reasoning_gym(column: str) -> None:
    task = Task(id="t", source="gcd", question="q", answer="1", meta={column: {}})
    assert await judge(Answering(never), "1", task) == Scored(reward=1.0, method="exact")
    assert await judge(Answering(never), "2", task) == Scored(reward=0.0, method="numeric")


async def test_a_family_that_is_gone_is_an_error() -> None:
    task = Task(id="t", source="s", question="q", answer="1", meta={"family": "gone", "entry": {}})
    with pytest.raises(ConfigError, match="'gone'"):
        await judge(Answering(never), "2", task)


# ---------------------------------------------------------------- failures of ours


def killed(request: ExecRequest) -> ExecResult:
    return dataclasses.replace(OK, status=Status.TIMEOUT, exit_code=None, signal=9, wall_s=6.0)


async def test_a_hanging_grader_is_our_failure_and_no_reward() -> None:
    outcome = await judge(Answering(killed), "84/2", "42")
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.retryable) == ("verifier_timeout", False)


async def test_a_sandbox_error_keeps_its_kind() -> None:
    def dead(request: ExecRequest) -> ExecResult:
        raise SandboxError("the zygote died", kind="zygote_died", retryable=True)

    outcome = await judge(Answering(dead), "84/2", "42")
    assert outcome == Failed(kind="verifier_zygote_died", retryable=True, detail="the zygote died")


@pytest.mark.parametrize("stdout", ["", "1\n", "\n0123456789abcdef0123456789abcdef 1\n"])
async def test_output_without_the_nonce_is_no_verdict(stdout: str) -> None:
    outcome = await judge(Answering(lambda _: dataclasses.replace(OK, stdout=stdout)), "84/2", "42")
    assert isinstance(outcome, Failed)
    assert outcome.kind == "verifier_no_verdict"


async def test_every_call_has_a_nonce_of_its_own_that_is_not_in_the_job() -> None:
    sandbox = PythonHere()
    await judge(sandbox, "84/2", "42")
    await judge(sandbox, "84/2", "42")
    jobs, nonces = zip(*(request.stdin.splitlines() for request in sandbox.requests), strict=True)
    assert jobs[0] == jobs[1] and nonces[0] != nonces[1]


async def test_the_wall_clock_and_the_deadline_reach_the_sandbox() -> None:
    seen: list[tuple[float, float | None]] = []

    class Watching(PythonHere):
        async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
            seen.append((request.limits.wall_s, deadline))
            return await super().run(request)

    judge_ = Judge(Watching(), wall_s=2.5)
    await judge_.score(text_of("84/2"), task_of("42"), truncated=False, deadline=123.0)
    assert seen == [(2.5, 123.0)]


# ---------------------------------------------------------------- the real sandbox


@pytest.fixture(scope="module")
def real_verdicts() -> dict[str, Outcome]:
    """One warm verifier for all questions to it; the answers by name."""
    (countdown,) = reasoning_gym_tasks("countdown", {}, size=1, seed=0)
    unequal = dataclasses.replace(countdown, answer="")

    async def ask() -> dict[str, Outcome]:
        async with SandboxPool(("verifier",)) as pool:
            hang = "9^{9^{9^{9^9}}} + x - 1/7"
            patient, hasty = Judge(pool, wall_s=30.0), Judge(pool, wall_s=0.5)
            options: dict[str, Any] = {"truncated": False, "deadline": None}
            return {
                "right": await patient.score(text_of("84/2"), task_of("42"), **options),
                "wrong": await patient.score(text_of("x^2"), task_of("x^3"), **options),
                "hang": await hasty.score(text_of(hang), task_of("\\sqrt{2}^x"), **options),
                "after the hang": await patient.score(text_of("\\frac12"), task_of("0.5"), **options),
                "family": await patient.score(text_of(countdown.answer), unequal, **options),
            }

    return asyncio.run(ask())


@pytest.mark.parametrize(("name", "reward"), [("right", 1.0), ("wrong", 0.0), ("after the hang", 1.0)])
def test_the_real_verifier_gives_verdicts(
    real_verdicts: dict[str, Outcome], name: str, reward: float
) -> None:
    assert real_verdicts[name] == Scored(reward=reward, method="math_verify")


def test_the_real_verifier_is_killed_when_it_hangs(real_verdicts: dict[str, Outcome]) -> None:
    outcome = real_verdicts["hang"]
    assert isinstance(outcome, Failed)
    assert outcome.kind == "verifier_timeout"


@pytest.mark.skipif(
    "reasoning_gym" not in FLAVOURS["verifier"].modules, reason="the verifier zygote has no reasoning_gym"
)
def test_the_real_verifier_knows_reasoning_gym(real_verdicts: dict[str, Outcome]) -> None:
    assert real_verdicts["family"] == Scored(reward=1.0, method="reasoning_gym")
