"""The built-in sets: one list of names, two forms of a copy, wrong copies refused; and contamination."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.types import Attempt, Failed, FinishReason, Outcome, Scored, Task, Trajectory, Turn
from rocstar.train.data.eval_questions import EvalQuestions
from rocstar.train.evaluation.benchmarks import benchmark
from rocstar.train.evaluation.benchmarks.benchmark import answer_block, json_digest, next_number, tasks_digest
from rocstar.train.evaluation.benchmarks.registry import (
    ANSWER_FORMATS,
    NAMES,
    copy_of,
    find,
    load_tasks_of,
    parse_contest_integer,
)
from rocstar.train.evaluation.rescore import Regrader
from rocstar.train.recipe.config import SETS, EvalConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.learned_questions import Learned
from rocstar.train.tasks.rows import DATA_DIR_VARIABLE

from .eval_folders import short_attempt

MATH = ("aime24", "aime25", "hmmt_feb_2025", "math500", "amc23", "gsm8k")
ROWS: list[dict[str, Any]] = [{"problem": "What is 6 * 7?", "answer": "042"}, {"problem": "And 2 + 3?", "answer": 5.0}]


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of two questions in place of a built-in one."""
    row = benchmark.SETS["aime24"] | {
        "num_questions": 2,
        "repository": "o/n",
        "file": "data/test.jsonl",
        "digest": "",
        "answers": json_digest(["42", "5"]),
    }
    monkeypatch.setitem(benchmark.SETS, "aime24", row)


def write(path: Path, rows: Sequence[Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_the_recipe_and_the_registry_have_the_same_names() -> None:
    assert NAMES == SETS


@pytest.mark.parametrize("name", MATH)
def test_a_set_says_where_it_comes_from(name: str) -> None:
    found = find(name)
    assert found.name == name and found.licence and len(found.source.revision) == 40
    assert found.defaults.samples == 16 and found.defaults.max_response_tokens == 30_000
    assert len(found.source.digest) == 64 or name == "hmmt_feb_2025"


def test_two_forms_of_a_copy_are_one_set(two: None, tmp_path: Path) -> None:
    local = load_tasks_of(EvalConfig(set="aime24", path=write(tmp_path / "a.jsonl", ROWS)))
    hub = [{"question": row["problem"], "answer": row["answer"], "id": k} for k, row in enumerate(ROWS)]
    assert load_tasks_of(EvalConfig(set="aime24", path=write(tmp_path / "b.jsonl", hub))) == local
    assert [task.answer for task in local] == ["42", "5"]
    source = find("aime24").source
    assert source.is_known("") is None and dataclasses.replace(source, digest="a").is_known("a")


def test_a_copy_below_the_data_folder_is_found(two: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(tmp_path))
    path = write(tmp_path / "o" / "n" / "data" / "test.jsonl", ROWS)
    assert str(copy_of(find("aime24"))) == path


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, "does not exist"),
        (ROWS[:1], "answers are not the published ones"),
        ([ROWS[0], ROWS[1] | {"answer": "480"}], "answers are not the published ones.*use the copy of the hub"),
        ([ROWS[0], ROWS[1] | {"answer": "5a"}], "line 2.*'5a' is not a whole number"),
        ([ROWS[0], {"problem": "?"}], "line 2.*none of the columns answer, solution"),
        (["x"], "line 1.*not an object"),
    ],
)
def test_a_wrong_copy_is_refused(two: None, tmp_path: Path, rows: list[Any] | None, message: str) -> None:
    path = str(tmp_path / "gone.jsonl") if rows is None else write(tmp_path / "a.jsonl", rows)
    with pytest.raises(ConfigError, match=message):
        load_tasks_of(EvalConfig(set="aime24", path=path))


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        ("integer", "27.0", "27"),
        ("integer", "336^\\circ", "336"),
        ("contest_integer", "025", "25"),
        ("after_marks", "She has 1,000 - 2 left.\n#### 1,250", "1250"),
        ("after_marks", "-3", "-3"),
    ],
)
def test_answers_in_their_one_form(read: str, text: str, value: str) -> None:
    assert ANSWER_FORMATS[read](text) == value


@pytest.mark.parametrize("text", ["1000", "-1", "1/2"])
def test_what_is_no_answer_of_a_contest(text: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        parse_contest_integer(text)


def test_a_digest_is_of_what_is_asked_and_scored() -> None:
    one = Task(id="a", source="x", question="q", answer="1")
    assert tasks_digest([one]) == tasks_digest([Task(id="b", source="y", question="q", answer="1")])
    for other in (
        Task(id="a", source="x", question="q ", answer="1"),
        Task(id="a", source="x", question="q", answer="2"),
        Task(id="a", source="x", question="q", answer="1", meta={"kwargs": (1,)}),
        Task(id="a", source="x", question="q", answer="1", context=({"role": "system", "content": "s"},)),
    ):
        assert tasks_digest([one]) != tasks_digest([other])
    assert tasks_digest([one, one]) != tasks_digest([one])


ASKED = Task(
    id="a",
    source="s",
    question="How many?",
    answer="",
    meta={"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}], "baseline": "Two."},
)


@pytest.mark.parametrize("name", ["ifeval", "arena_hard"])
async def test_a_set_without_answers_has_no_gold_and_what_says_nothing_is_wrong(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCSTAR_JUDGE_URL", "http://127.0.0.1:1/v1")
    found = find(name)
    assert found.gold(ASKED) is None and found.judge is not None
    said_nothing = found.near_miss(ASKED)
    assert isinstance(said_nothing, str)
    turn = Turn(start=0, end=0, text=said_nothing, stopped=True)
    outcome = await found.judge().score(Attempt(task=ASKED, turns=(turn,), is_truncated=False), deadline=None)
    assert isinstance(outcome, Scored) and outcome.reward == 0 and not outcome.is_correct


@pytest.mark.parametrize(("answer", "wrong"), [("-7", "-6"), ("42", "43"), ("\\frac{1}{2}", "(\\frac{1}{2})+1")])
def test_a_mathematical_set_has_a_number_beside_the_answer_as_near_miss(answer: str, wrong: str) -> None:
    assert next_number(dataclasses.replace(ASKED, answer=answer)) == answer_block(wrong)
    assert all(find(name).near_miss is next_number for name in MATH)


class Noting:
    """A judge that records its inputs."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        self.asked.append(attempt.text)
        return Scored(reward=float(attempt.text == answer_block(attempt.task.answer)), method="noted")


async def test_another_judge_is_asked_about_each_attempt_that_reached_its_judge() -> None:
    judge, task = Noting(), Task(id="a", source="s", question="q", answer="1")
    lost = Failed(kind="deadline", retryable=True, detail="")
    aborted = dataclasses.replace(said(task, ""), finish_reason=FinishReason.aborted, outcome=lost)
    attempts = [said(task, answer_block(x)) for x in ("1", "1", "2")]
    *found, kept = await Regrader(judge).outcomes([*attempts, aborted])
    assert [getattr(outcome, "reward", None) for outcome in found] == [1.0, 1.0, 0.0]
    assert len(judge.asked) == 3 and kept == lost


def said(task: Task, text: str) -> Trajectory:
    """An attempt of one turn."""
    return short_attempt(task, turns=(Turn(start=1, end=2, text=text, stopped=True),))


# ---------------------------------------------------------------- contamination

QUESTIONS = [
    Task(id=name, source="s", question=text, answer="1") for name, text in (("a", "How many?"), ("b", "Why?"))
]


def learned(tasks: list[Task], texts: list[str]) -> Learned:
    held = EvalQuestions({"set": QUESTIONS})
    return Learned(
        tasks=frozenset(q for found in held.of_tasks(tasks) for q in found),
        texts=frozenset(q for found in held.of((text, "") for text in texts) for q in found),
        is_empty=not (tasks or texts),
    )


def test_contaminated_is_what_is_learned_whitespace_and_case_aside() -> None:
    trained = learned([Task(id="x", source="t", question="how  MANY?", answer="2")], [])
    found = trained.found("set", QUESTIONS, left_out=False)
    assert found is not None and (found["overlap"], found["questions"]) == (1, ["a"])
    left = trained.found("set", QUESTIONS, left_out=True)
    assert left is not None and (left["overlap"], left["questions"]) == (1, []), "the stages leave it out"
    assert "data check" in found["rule"]


def test_what_a_conversation_asks_is_learned_whatever_the_stages_leave_out() -> None:
    found = learned([], ["why?"]).found("set", QUESTIONS, left_out=True)
    assert found is not None and found["questions"] == ["b"]
    assert learned([], []).found("set", QUESTIONS, left_out=False) is None, "nothing was trained on"
