"""The experiments' own arithmetic, what they make again and what not, and the rewards that they try."""

from __future__ import annotations

import importlib
import json
import math
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rocstar.engine.rollout.rollout import Agent, RolloutLimits
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.tools.jupyter import JupyterTool
from rocstar.engine.types import Attempt, Span, Task, ToolCall, ToolResult, TrajectoryKey, Turn
from rocstar.sandbox.testing import FakeSandbox, error, ok
from rocstar.sandbox.types import Limits, SandboxError
from rocstar.train.algorithm.advantages import ESTIMATORS, Sample
from rocstar.train.groups.advantages import check_advantage
from rocstar.train.recipe import own_code
from rocstar.train.recipe.reward_config import RewardConfig
from rocstar.train.tasks.own_reward import check_reward

ROOT = Path(__file__).parents[2]
IDEAS = ROOT / "examples" / "failed_ideas" / "ideas.py"
MODULES = (
    "arms",
    "reasons",
    "roc_against_grpo",
    "rewards",
    "environment_under_load",
    "turn_values",
    "branched_notebook",
    "cold_start",
)


@pytest.fixture(scope="module")
def experiments() -> Iterator[dict[str, ModuleType]]:
    """The scripts as modules."""
    paths = [str(ROOT / "benchmarks" / "experiments"), str(ROOT / "benchmarks")]
    before = set(sys.modules)
    sys.path[:0] = paths
    try:
        yield {name: importlib.import_module(name) for name in MODULES}
    finally:
        for path in paths:
            sys.path.remove(path)
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(str(ROOT / "benchmarks")):  # no library: torch cannot be loaded twice
                del sys.modules[name]


@pytest.fixture(scope="module")
def ideas() -> Any:
    """examples/failed_ideas/ideas.py, as a recipe finds it."""
    names = ("answer_and_tools", "less_for_repeating", "mark_truncated", "leave_out_truncated", "repeated")
    found = {name: own_code.load(f"{IDEAS}:{name}", field="reward.kind") for name in names}
    return Namespace(**found)


# ---- arms ----


def test_a_finished_arm_is_not_made_again_and_a_begun_one_goes_on(
    experiments: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []

    def run(command: list[str], **_: Any) -> None:
        called.append(command)

    monkeypatch.setattr(subprocess, "run", run)
    arms = experiments["arms"]
    for name in ("new", "begun", "done"):
        (tmp_path / name).mkdir()
    (tmp_path / "begun" / "metrics.jsonl").touch()
    (tmp_path / "done" / "metrics.jsonl").touch()
    for name, status in (("begun", "interrupted"), ("done", "complete")):
        (tmp_path / name / "report.html").touch()  # written while a run goes on
        starts = [{"status": "failed"}, {"status": status}]
        (tmp_path / name / "manifest.json").write_text(json.dumps({"starts": starts}))
    for name in ("new", "begun", "done"):
        arms.call("train", "r.toml", tmp_path / name, ["--rl.lr=1"])
    assert ["--resume" in command for command in called] == [False, True]
    assert all(command[-1] == "--rl.lr=1" for command in called)


def test_accuracy_is_what_the_judge_says_whatever_a_reward_adds(
    experiments: dict[str, ModuleType], tmp_path: Path
) -> None:
    arms = experiments["arms"]
    (tmp_path / "evaluations" / "step_000004").mkdir(parents=True)
    questions = {
        "a": {"attempts": [True, False, None], "rewards": [1.5, 0.5, None]},
        "b": {"attempts": [True], "rewards": [0.6]},
        "c": {"attempts": [None], "rewards": [None]},
    }
    results = {"sets": {"heldout": {"questions": questions}}}
    (tmp_path / "evaluations" / "step_000004" / "results.json").write_text(json.dumps(results))
    assert arms.evaluations_of(tmp_path) == [(4, 0.75)]


def curve(arms: ModuleType, tokens: list[float], evaluations: list[tuple[int, float]]) -> Any:
    errors = [(1, 10)] * (len(tokens) // 2) + [(0, 10)] * (len(tokens) - len(tokens) // 2)
    return arms.Curve(tokens=tokens, rewards=[], errors=errors, evaluations=evaluations, steps=[])


def test_equal_tokens_are_found_between_steps(experiments: dict[str, ModuleType]) -> None:
    """An arm of half the tokens a step is looked at after twice the steps."""
    arms = experiments["arms"]
    roc = curve(arms, [200.0, 400.0, 600.0, 800.0], [(0, 0.2), (4, 0.6)])
    grpo = curve(arms, [100.0 * k for k in range(1, 11)], [(0, 0.2), (4, 0.4), (8, 0.5), (10, 0.9)])
    found = experiments["roc_against_grpo"].compared(roc, grpo, 4)
    assert found["grpo_at_steps"]["held_out"] == pytest.approx(0.4)
    assert found["grpo_at_tokens"]["step"] == pytest.approx(8.0) and found["grpo_at_tokens"]["reached"]
    assert found["grpo_at_tokens"]["held_out"] == pytest.approx(0.5)
    assert found["grpo_at_steps"]["error_share"] == pytest.approx(0.1)
    assert found["grpo_at_tokens"]["error_share"] == pytest.approx(0.0)
    short = curve(arms, [100.0], [(0, 0.2), (1, 0.3)])
    assert not experiments["roc_against_grpo"].compared(roc, short, 4)["grpo_at_tokens"]["reached"]


@pytest.mark.parametrize(
    ("differences", "shows"),
    [
        ([0.1, 0.12, 0.11, 0.13], "more"),
        ([-0.1, -0.12, None, -0.11, -0.13], "less"),
        ([0.3, -0.3, 0.2], "nothing"),
        ([0.4], "nothing"),
        ([], "nothing"),
    ],
)
def test_what_a_difference_shows_follows_from_its_interval(
    experiments: dict[str, ModuleType], differences: list[float | None], shows: str
) -> None:
    found = experiments["arms"].paired(differences)
    assert found["shows"] == shows
    harm = experiments["rewards"].judged(found, 1)["harm"]
    assert harm == ("shown" if shows == "less" else "not shown")


def test_a_machine_without_git_has_no_commit(
    experiments: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert experiments["arms"].machine()["commit"] == ""


def test_a_seed_is_paired_with_itself_whichever_arms_are_finished(
    experiments: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arms that go on are left out, and what differs between seeds is no difference of arms."""
    ended = {"non_reasoning_1": 0.5, "non_reasoning_2": 0.8, "reasoning_0": 0.1, "reasoning_1": 0.6}
    ended |= {"reasoning_2": 0.9, "none_2": 0.0}
    for name in (*ended, "none_1"):
        (tmp_path / name).mkdir()
        status = "complete" if name in ended else "running"
        (tmp_path / name / "manifest.json").write_text(json.dumps({"starts": [{"status": status}]}))

    def told(directory: Path, _: int) -> dict[str, Any]:
        values = dict.fromkeys(experiments["cold_start"].VALUES, ended[directory.name])
        return {**values, "curve": [[0, 0.0], [24, ended[directory.name]]]}

    monkeypatch.setattr(experiments["cold_start"], "told", told)
    out = tmp_path / "found.json"
    given = ["--runs", str(tmp_path), "--out", str(out), "--figure", str(tmp_path / "found.svg")]
    monkeypatch.setattr(sys, "argv", ["cold_start", "--seeds", "3", "--finished", *given])
    assert experiments["cold_start"].main() == 0
    found = json.loads(out.read_text())["minus_non_reasoning"]
    assert found["reasoning"]["held_out_end"]["difference"] == pytest.approx(0.1)
    assert [found[arm]["held_out_end"]["seeds"] for arm in ("reasoning", "none")] == [2, 1]
    monkeypatch.setattr(sys, "argv", ["cold_start", "--seeds", "1", "--finished", *given])
    assert experiments["cold_start"].main() == 2


# ---- reasons ----

QUESTIONS = {
    "Find the Greatest Common Divisor (GCD) of these numbers: 84, 360. Give only the GCD.": "12",
    "Find the Least Common Multiple (LCM) of these numbers: 12, 18": "36",
    "Solve the following multiplication: 12 * 304. Give only the result.": str(12 * 304),
    "State the final answer to the following arithmetic problem: 13 + 34 - 95 =": "-48",
    "How many 1 bits are there in the binary representation of the number 2345?": "5",
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_reason_comes_to_the_answer_and_each_of_its_equations_holds(
    experiments: dict[str, ModuleType], question: str
) -> None:
    reason = experiments["reasons"].reason_for(question)
    assert re.findall(r"-?[0-9]+", reason)[-1] == QUESTIONS[question]
    equations = re.findall(r"([0-9][0-9 */+-]*) = (-?[0-9][0-9 */+-]*)", reason)
    assert equations or "binary" in reason
    for left, right in equations:
        assert math.isclose(eval(left), eval(right)), (left, right)


def test_only_the_first_call_gets_a_reason(experiments: dict[str, ModuleType]) -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{}]}
    row = {
        "messages": [{"role": "user", "content": next(iter(QUESTIONS))}, call, {"role": "tool"}, dict(call)]
    }
    made = experiments["reasons"].with_reasons(row)["messages"]
    assert made[1]["content"].endswith("12.") and made[3]["content"] == ""
    assert call["content"] == ""  # the plain conversation is not changed


# ---- rewards ----

ANSWERED = "So it is <answer>\\boxed{42}</answer>"


def attempt(text: str = ANSWERED, *, errors: tuple[bool, ...] = (), truncated: bool = False) -> Attempt:
    call = ToolCall(name="python", arguments={"code": "1"})
    results = tuple(ToolResult(status="error" if e else "ok", is_error=e, text="") for e in errors)
    turns = [
        Turn(start=0, end=1, text="I call.", stopped=True, calls=(call,) * len(results), results=results),
        Turn(start=1, end=2, text=text, stopped=not truncated),
    ]
    task = Task(id="t", source="made", question="6 * 7?", answer="42")
    return Attempt(task=task, turns=tuple(turns), is_truncated=truncated)


async def test_tools_that_go_well_add_to_the_reward_and_make_nothing_correct(ideas: Any) -> None:
    sandbox = FakeSandbox({}, otherwise=ok())
    for errors, value in (((), 1.0), ((False,), 1.5), ((True, False), 1.25), ((True,), 1.0)):
        found = await ideas.answer_and_tools(attempt(errors=errors), sandbox=sandbox, bonus=0.5)
        assert (found.value, found.is_correct) == (value, True)
    wrong = await ideas.answer_and_tools(attempt("no", errors=(False,)), sandbox=sandbox)
    assert (wrong.value, wrong.is_correct) == (0.5, False)


async def test_repeating_takes_from_the_reward(ideas: Any) -> None:
    sandbox = FakeSandbox({}, otherwise=ok())
    assert ideas.repeated("one two three four five", 4) == 0.0
    assert ideas.repeated("a b c d " * 20, 4) > 0.9
    assert ideas.repeated("a b", 4) == 0.0
    found = await ideas.less_for_repeating(attempt("so so " * 40 + ANSWERED), sandbox=sandbox, weight=0.5)
    assert 0.5 < found.value < 0.7 and found.is_correct
    assert (await ideas.less_for_repeating(attempt(), sandbox=sandbox)).value == 1.0


async def test_truncated_siblings_teach_nothing_and_change_no_mean(ideas: Any) -> None:
    sandbox = FakeSandbox({}, otherwise=ok())
    cut = await ideas.mark_truncated(attempt(truncated=True), sandbox=sandbox)
    kept = await ideas.mark_truncated(attempt(), sandbox=sandbox)
    assert kept.value == 1.0 and cut.value < 0 and not cut.is_correct

    def sample(reward: float) -> Sample:
        return Sample(reward=reward, is_correct=reward == 1.0, tokens_U=(3,), errors_U=(0,))

    ended = [sample(1.0), sample(0.0), sample(1.0)]
    ((*found, of_cut),) = ideas.leave_out_truncated([[*ended, sample(cut.value)]])
    assert of_cut == 0.0
    assert found == pytest.approx(list(ESTIMATORS["grpo"]([ended])[0]), abs=1e-4)
    assert ideas.leave_out_truncated([[sample(cut.value), sample(1.0)]]) == [[0.0, 0.0]]


@pytest.mark.parametrize("name", ["answer_and_tools", "less_for_repeating", "mark_truncated"])
def test_a_recipe_takes_them(name: str) -> None:
    check_reward(RewardConfig(kind=f"{IDEAS}:{name}"))
    check_advantage(f"{IDEAS}:leave_out_truncated")


# ---- environment and turns ----


def test_wrong_answers_are_told_apart_from_lost_ones(experiments: dict[str, ModuleType]) -> None:
    module = experiments["environment_under_load"]
    answers = [
        module.Answered(kind="good", seconds=0.01 * k, is_right=k != 3, is_lost=False) for k in range(1, 101)
    ]
    answers += [module.Answered(kind="good", seconds=9.0, is_right=False, is_lost=True)]
    answers += [module.Answered(kind="bad", seconds=1.0, is_right=False, is_lost=False)]
    found = module.told(answers, 2.0)
    assert (found["wrong_good"], found["wrong_bad"], found["lost"]) == (1, 1, 1)
    assert found["calls_per_s"] == 51.0 and found["good_p50_ms"] == pytest.approx(510.0)


CELLS = ("x = 1", "refused", "x = 2")
KEY = TrajectoryKey(seed=0, step=1, task_id="t", sibling=0)


def notebook_agent(sandbox: Any) -> Agent:
    """An agent whose only tool is a notebook; nothing of it generates or judges here."""
    tool = JupyterTool(limits=Limits(), flavour="stdlib", style="plain")
    limits = RolloutLimits(max_response_tokens=9, max_turns=9, max_tool_tokens=9, timeout_s=9.0)
    nothing: Any = None
    return Agent(
        inference=nothing,
        chat=nothing,
        tools=Dispatcher(tools=[tool], sandbox=sandbox),
        judge=nothing,
        limits=limits,
        sampling=nothing,
    )


def notebook_turn() -> Turn:
    """Three calls, of which the tool never had the second."""
    calls = tuple(ToolCall(name="jupyter_code", arguments={"code": code}) for code in CELLS)
    ran = ToolResult(status="ok", is_error=False, text="", ran=Span(0.0, 1.0))
    refused = ToolResult(status="too_many_calls", is_error=True, text="")
    return Turn(start=0, end=1, text="", stopped=True, calls=calls, results=(ran, refused, ran))


async def test_every_continuation_goes_on_from_what_ran_so_far(experiments: dict[str, ModuleType]) -> None:
    sandbox = FakeSandbox({}, otherwise=ok())
    notebook = experiments["branched_notebook"].BranchedNotebook(notebook_agent(sandbox), KEY)
    assert await notebook.follow(notebook_turn())
    branch_s: list[float] = []
    box = notebook.branching(branch_s).tools
    for code in ("x = 3", "x = 4"):
        async with box.open(seed=4) as tools:
            call = ToolCall(name="jupyter_code", arguments={"code": code})
            await tools.execute([call], turn=2, deadline=None)
    own, *branches = (session.cells for session in sandbox.sessions)
    assert branches == [["x = 1", "x = 2", "x = 3"], ["x = 1", "x = 2", "x = 4"]]
    assert own == ["x = 1", "x = 2"] and len(branch_s) == 2
    await notebook.aclose()
    assert all(session.lost == "closed" for session in sandbox.sessions)


async def test_a_cell_that_ends_otherwise_leads_to_another_state(experiments: dict[str, ModuleType]) -> None:
    notebooks = experiments["branched_notebook"].BranchedNotebook
    for answer in (error(), SandboxError("no", kind="overloaded", retryable=True)):
        agent = notebook_agent(FakeSandbox({"x = 1": ok(), "x = 2": answer}))
        assert not await notebooks(agent, KEY).follow(notebook_turn())
    without = replace(agent, tools=Dispatcher(tools=[]))
    plain = notebooks(without, KEY)
    assert await plain.follow(notebook_turn()) and plain.branching([]) is without


def test_what_turns_are_worth_has_an_interval_over_tasks(experiments: dict[str, ModuleType]) -> None:
    rows = [
        {"task": f"t{k}", "is_error": False, "before": 0.2, "after": 0.2 + 0.1 * (k % 3)} for k in range(12)
    ]
    found = experiments["turn_values"].worth(rows, False)
    assert found["mean"] == pytest.approx(0.1) and found["low"] < 0.1 < found["high"]
    assert experiments["turn_values"].worth(rows, True) == {"turns": 0, "tasks": 0}
