"""The demonstrator: as mediocre as asked, independent of execution order, and right where it means to be."""

import asyncio
import contextlib
import dataclasses
import io
import random
from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.chat.callforms import FORMS
from rocstar.engine.progress.progress import ProgressBoard
from rocstar.engine.types import CALL_FORMS, Task, TurnForm
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, SandboxError
from rocstar.train.compose.start import conversations
from rocstar.train.recipe.config import Noise
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe
from rocstar.train.tasks.data import reasoning_gym_tasks
from rocstar.train.tasks.demonstrations import FAMILIES, make_demonstrations, programs_for, spoil
from tests.fakes.sandbox import FakeSandbox, error, ok

from ...engine.chat.template_families import chat_of

OPTIONS: Mapping[str, dict[str, Any]] = {
    "gcd": {"min_value": 10, "max_value": 999, "exclude_answers": ["1"]},
    "lcm": {"min_value": 10, "max_value": 99},
    "products": {"min_digits": 2, "max_digits": 3},
    "chain_sum": {"min_terms": 3, "max_terms": 3, "min_digits": 2, "max_digits": 2},
    "count_primes": {"min_n": 10, "max_n": 999},
    "count_bits": {"min_n": 100, "max_n": 9999},
}
CLEAN = Noise(guess=0, right=1, first_slip=0, retry_slip=0, no_tag=0, double_answer=0)


class PythonHere:
    """Executes in this process and ends its calls out of order; `concurrent` is the most it saw at once."""

    def __init__(self) -> None:
        self.calls = self.running = self.concurrent = 0

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        self.calls += 1
        self.running += 1
        self.concurrent = max(self.concurrent, self.running)
        for _ in range(self.calls % 3):
            await asyncio.sleep(0)
        self.running -= 1
        stdout, stderr = io.StringIO(), ""
        try:
            with contextlib.redirect_stdout(stdout):
                exec(compile(request.code, "cell", "exec"), {})
        except (NameError, SyntaxError) as caught:
            stderr = f"{type(caught).__name__}: {caught}"
        return error(stderr, stdout=stdout.getvalue()) if stderr else ok(stdout.getvalue())


class Tool:
    """The settings of the tool that the demonstrator uses."""

    name, style, flavour, limits = "python", "plain", "stdlib", Limits()


def tasks_of(family: str, size: int = 30) -> list[Task]:
    return reasoning_gym_tasks(family, OPTIONS[family], size=size, seed=3)


def all_tasks(size: int = 30) -> list[Task]:
    return [task for family in FAMILIES for task in tasks_of(family, size)]


def demonstrate(tasks: list[Task], count: int, **options: Any) -> list[dict[str, Any]]:
    options = {"seed": 0, "sandbox": PythonHere(), "noise": Noise(), **options}
    return asyncio.run(make_demonstrations(tasks, count, tool=cast(Any, Tool), **options))


async def test_who_watches_sees_how_many_are_made() -> None:
    board = ProgressBoard()
    seen: list[tuple[int, int]] = []

    class Watched(PythonHere):
        async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
            (work,) = board.works
            assert (work.what, work.unit) == ("demonstrations", "conversations")
            seen.append((work.done, work.total))
            return await super().run(request, deadline=deadline)

    with board.installed():
        await make_demonstrations(
            tasks_of("gcd"), 40, seed=0, sandbox=Watched(), tool=cast(Any, Tool), noise=Noise(), num_workers=1
        )
    assert {total for _, total in seen} == {40}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[0][0] < 5 and seen[-1][0] >= 35 and not board.works


def execute(code: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    return out.getvalue().strip()


@pytest.mark.parametrize("family", FAMILIES)
def test_right_programs_print_the_answer_and_wrong_ones_usually_do_not(family: str) -> None:
    lucky = 0
    for task in tasks_of(family):
        programs = programs_for(task)
        assert {execute(code) for code in programs.right} == {task.answer}
        lucky += sum(execute(code) == task.answer for code in programs.wrong)
    assert lucky <= 0.1 * sum(len(programs_for(task).wrong) for task in tasks_of(family))


@given(st.sampled_from(sorted(FAMILIES)), st.integers(0, 10_000))
def test_a_slip_always_fails(family: str, seed: int) -> None:
    rng = random.Random(seed)
    programs = programs_for(tasks_of(family, size=1)[0])
    code = rng.choice(programs.right + programs.wrong)
    spoiled = spoil(code, rng)
    assert spoiled != code
    with pytest.raises((NameError, SyntaxError)):
        execute(spoiled)


def test_all_four_slips_occur() -> None:
    code = "import math\nprint(math.gcd(4, 6))"
    assert {spoil(code, random.Random(seed)) for seed in range(50)} == {
        "print(math.gcd(4, 6))",
        "import math\nprint(result)",
        "import math\nPrint(math.gcd(4, 6))",
        "import math\nprint(math.gcd(4, 6)",
    }


def test_a_conversation_is_a_chat_row_with_openai_tool_calls() -> None:
    system = {"role": "system", "content": "You are a pirate."}
    task = dataclasses.replace(tasks_of("gcd", size=1)[0], context=(system,))
    (row,) = demonstrate([task], 1, noise=CLEAN)
    first, user, call, result, closing = row["messages"]
    assert first == system and list(row) == ["messages"]
    assert user == {"role": "user", "content": task.question}
    (tool_call,) = call["tool_calls"]
    assert (call["role"], tool_call["type"]) == ("assistant", "function")
    assert tool_call["function"]["name"] == "python"
    assert tool_call["function"]["arguments"] == {"code": programs_for(task).right[0]}
    assert (result["role"], result["content"]) == ("tool", task.answer)
    assert result["tool_call_id"] == tool_call["id"]
    assert closing == {"role": "assistant", "content": f"<answer>\\boxed{{{task.answer}}}</answer>"}


def test_noise_has_the_asked_rates_and_slips_say_nothing_about_being_right() -> None:
    tasks = all_tasks()
    count = 4000
    rows = demonstrate(tasks, count)
    answers = [row["messages"][-1]["content"] for row in rows]
    calls = [[m for m in row["messages"] if m.get("tool_calls")] for row in rows]
    called = [index for index in range(count) if calls[index]]

    def rate(hits: int, total: int) -> float:
        return hits / total

    assert rate(count - len(called), count) == pytest.approx(Noise().guess, abs=0.02)
    closings = Counter(answers[index].count("<answer>") for index in called)
    assert rate(closings[0], len(called)) == pytest.approx(Noise().no_tag, abs=0.02)
    assert rate(closings[2], len(called)) == pytest.approx(Noise().double_answer, abs=0.02)
    slipped: dict[bool, list[bool]] = {True: [], False: []}
    for index in called:
        programs = programs_for(tasks[index % len(tasks)])
        last = calls[index][-1]["tool_calls"][0]["function"]["arguments"]["code"]
        slipped[last in programs.right].append(len(calls[index]) > 1)
    assert rate(len(slipped[True]), len(called)) == pytest.approx(Noise().right, abs=0.03)
    for outcomes in slipped.values():
        assert rate(sum(outcomes), len(outcomes)) == pytest.approx(Noise().first_slip, abs=0.04)
    assert max(len(c) for c in calls) == 3


def test_rows_do_not_depend_on_the_order_of_executions() -> None:
    tasks = all_tasks(size=4)
    alone, together = PythonHere(), PythonHere()
    rows = demonstrate(tasks, 60, sandbox=alone, num_workers=1)
    assert demonstrate(tasks, 60, sandbox=together, num_workers=8) == rows
    assert demonstrate(tasks, 60, seed=1) != rows
    assert alone.concurrent == 1
    assert together.concurrent == 8


def test_a_call_that_never_works_ends_after_three_tries() -> None:
    always = Noise(guess=0, right=1, first_slip=1, retry_slip=1, no_tag=0, double_answer=0)
    (row,) = demonstrate(tasks_of("gcd", size=1), 1, noise=always)
    contents = [m["content"] for m in row["messages"] if m["role"] == "tool"]
    assert ["Error" in content for content in contents] == [True, True, False]


def test_an_unknown_family_is_named_before_anything_runs() -> None:
    sandbox = PythonHere()
    tasks = [*tasks_of("gcd", size=1), Task(id="t", source="sudoku", question="q", answer="1")]
    with pytest.raises(ConfigError, match=r"'sudoku'; use any of gcd, lcm, products"):
        demonstrate(tasks, 1, sandbox=sandbox)
    with pytest.raises(ConfigError, match="no tasks"):
        demonstrate([], 1)
    assert sandbox.calls == 0


def test_a_failing_sandbox_stops_the_work() -> None:
    dead = FakeSandbox({}, otherwise=SandboxError("gone", kind="closed", retryable=False))
    with pytest.raises(SandboxError, match="gone"):
        demonstrate(tasks_of("gcd", size=1), 5, sandbox=dead, noise=CLEAN)


@pytest.mark.parametrize(("family", "question"), [("gcd", "of 1, 2, 3"), ("count_bits", "of nothing")])
def test_a_question_of_another_form_is_named(family: str, question: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot read the question '{question}'"):
        programs_for(Task(id="t", source=family, question=question, answer="1"))


@pytest.mark.parametrize("form", CALL_FORMS)
def test_demonstrated_calls_are_read_back_in_every_call_form(form: str) -> None:
    """What 20 demonstrations teach is what the parser of the template's form reads: all of it."""
    chat = chat_of(form)
    made = demonstrate(tasks_of("gcd", size=20), 20, speaks=not FORMS[form].at_start)
    asked = [
        [call["function"]["arguments"] for call in message.get("tool_calls", ())]
        for row in made
        for message in row["messages"]
        if message["role"] == "assistant"
    ]
    learned = []
    for row in made:
        ids, mask = chat.encode_conversation(row["messages"])
        wrote = chat.decode([token for token, is_learned in zip(ids, mask, strict=True) if is_learned])
        learned += [[call.arguments for call in chat.calls(turn)] for turn in wrote.split(chat.stop_text)[:-1]]
    assert learned == asked and sum(map(len, asked)) > 20


async def test_a_cold_start_has_the_errors_of_its_recipe() -> None:
    options = ["--sft.noise.guess=1", "--sft.num_demonstrations=5"]
    setup = SimpleNamespace(recipe=load_recipe("quickstart", options), listeners=SimpleNamespace(note=print))
    tasks = SimpleNamespace(conversations=[], demonstrations=tasks_of("gcd"))
    rows = await conversations(cast(Any, setup), cast(Any, tasks), PythonHere(), TurnForm())
    assert [len(row["messages"]) for row in rows] == [2] * 5
