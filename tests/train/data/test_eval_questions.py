"""What of a recipe's tasks and texts its evaluation asks, by the one rule of `rocstar data check`."""

from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.types import Task
from rocstar.train.data.eval_questions import EvalQuestions
from rocstar.train.plan.preflight import check_start, load_all_tasks
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError, ConfigErrors
from rocstar.train.recipe.load import parse_recipe
from tests.fakes.json_lines import write_lines

ASKED = "A wagon carries 40 crates of pears to a market and loses 3 at every second bridge. How many arrive?"
CLOSED = f"{ASKED} Express your answer as a common fraction."
OTHER = "Nine lanterns stand around a pond, and every third of them is lit at dusk. How many are dark?"


def task(question: str, answer: str = "1", *context: dict[str, Any], name: str = "t") -> Task:
    return Task(id=name, source="s", question=question, answer=answer, context=context)


def is_same(one: Task, other: Task) -> bool:
    return EvalQuestions({"set": [other]}).of_tasks([one]) == [[("set", "t")]]


def test_tasks_that_a_set_asks_are_left_out() -> None:
    tasks = [task(ASKED), task(OTHER), task(CLOSED.replace("crates", "boxes")), task(ASKED.replace("40", "55"))]
    found = EvalQuestions({"set": [task(CLOSED)]}).of_tasks(tasks)
    assert [not one for one in found] == [False, True, False, True], "other numbers are another problem"
    assert EvalQuestions({}).of_tasks(tasks) == [[]] * 4


def test_a_question_of_two_sets_is_found_in_both() -> None:
    sets = {"one": [task(ASKED, name="a")], "two": [task(OTHER, name="b"), task(ASKED, name="c")]}
    assert EvalQuestions(sets).of_tasks([task(ASKED)]) == [[("one", "a"), ("two", "c")]]


def test_a_problem_is_the_question_with_the_turns_before_it() -> None:
    """Another system message makes no other problem; "And now?" behind other turns is one."""
    user, reply = {"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}
    system = {"role": "system", "content": "You are a pirate."}
    now = "And now?"
    assert is_same(task(now, "1", system), task(now))
    assert is_same(task(now, "1", system, user, reply), task("and  NOW?", "1", user, reply))
    assert not is_same(task(now, "1", user, reply), task(now))
    assert not is_same(task(now, "1", user, reply), task(now, "1", user, {**reply, "content": "3"}))
    called = {**reply, "tool_calls": [{"id": "x"}]}
    assert not is_same(task(now, "1", user, called), task(now, "1", user, reply))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"question": CLOSED, "answer": "7"}, {"question": OTHER, "answer": "6"}]
    write_lines(tmp_path / "tasks.jsonl", rows)
    write_lines(tmp_path / "exam.jsonl", [{"question": ASKED, "answer": "7"}])
    said = [{"role": "user", "content": f"Well: {ASKED}"}, {"role": "assistant", "content": "7"}]
    write_lines(tmp_path / "chat.jsonl", [{"messages": said}])
    return tmp_path


def recipe(**sections: Any) -> Recipe:
    stage = {"steps": 1, "max_response_tokens": 8, "max_turns": 1, "data": {"source": "tasks.jsonl"}}
    raw = {"stages": [stage], "eval": [{"data": {"source": "exam.jsonl"}}]} | sections
    return parse_recipe(raw, where="test")


def test_a_recipe_learns_no_question_of_its_evaluation(folder: Path) -> None:
    loaded = load_all_tasks(recipe())
    assert [one.question for one in loaded.stages[0]] == [OTHER]
    assert loaded.notes == ["stages.0.data: 1 of 2 tasks are questions of eval, and left out"]
    assert loaded.left_out == loaded.notes
    (asked,) = loaded.heldout["heldout"]
    assert loaded.learned.tasks == {("heldout", asked.id)} and loaded.learned.texts == frozenset()
    found = loaded.learned.found("heldout", loaded.heldout["heldout"], left_out=False)
    assert found is not None and found["questions"] == [asked.id]


def test_what_its_conversations_ask_is_learned(folder: Path) -> None:
    sft = {"steps": 1, "data": "chat.jsonl", "max_contradicting": 1.0}
    loaded = load_all_tasks(recipe(sft=sft))
    (asked,) = loaded.heldout["heldout"]
    assert loaded.learned.texts == {("heldout", asked.id)}
    found = check_start(recipe(sft=sft), folder / "run", dry=True)
    assert any("1 of 2 tasks are questions of eval" in line for line in found.notes), found


def test_a_stage_of_nothing_else_is_refused(folder: Path) -> None:
    write_lines(folder / "tasks.jsonl", [{"question": CLOSED, "answer": "7"}])
    with pytest.raises((ConfigError, ConfigErrors), match="all 1 tasks of its data are also in eval"):
        load_all_tasks(recipe())


def test_a_dry_run_counts_what_it_can_see(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of the hub is not looked at; the others are."""
    sets = [{"data": {"source": "exam.jsonl"}}, {"set": "hmmt_feb_2025"}]
    found = check_start(recipe(eval=sets), folder / "run", dry=True)
    assert found.notes == ["stages.0.data: 1 of 2 tasks are questions of eval, and left out"]
    assert any("hmmt_feb_2025" in line for line in found.unknown)
