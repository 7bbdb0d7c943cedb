"""The order of GPQA's options is uniform and a function of the question; its letter alone is right."""

import csv
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from rocstar.engine.types import HIDDEN, Scored, Task
from rocstar.train.evaluation.benchmarks.benchmark import answer_block as boxed
from rocstar.train.evaluation.benchmarks.registry import (
    LETTERS,
    ChoiceJudge,
    load_tasks_of,
    order_of,
    parse_letter,
    plain_set,
    wrong_letter,
)
from rocstar.train.recipe.config import EvalConfig
from rocstar.train.recipe.errors import ConfigError

from ..eval_folders import attempt_at

GPQA = plain_set("gpqa_diamond")
COLUMNS = (
    "Record ID",
    "Question",
    "Correct Answer",
    "Incorrect Answer 1",
    "Incorrect Answer 2",
    "Incorrect Answer 3",
    "High-level domain",
    "Canary String",
)


def made_up(number: int) -> dict[str, str]:
    options = [f"{number + step} gigaparsnips\n" for step in (0, 1000, 2000, 3000)]
    texts = [f"rec{number}", f"How heavy is parsnip {number}?", *options, "Botany", "no canary: made up"]
    return dict(zip(COLUMNS, texts, strict=True))


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Task]:
    rows = [made_up(number) for number in range(198)]
    path = write(tmp_path_factory.mktemp("gpqa") / "gpqa_diamond.csv", rows)
    return load_tasks_of(EvalConfig(set="gpqa_diamond", path=str(path)))


async def score(task: Task, text: str) -> float:
    outcome = await ChoiceJudge().score(attempt_at(task, text), deadline=None)
    assert isinstance(outcome, Scored)
    return outcome.reward


def test_each_letter_is_as_often_right_as_chance_has_it(tasks: Sequence[Task]) -> None:
    counts = Counter(task.answer for task in tasks)
    assert chisquare([counts[letter] for letter in LETTERS]).pvalue > 0.01


def test_all_24_orders_are_as_frequent_as_chance_has_it() -> None:
    counts = Counter(order_of(f"made-up question {number}") for number in range(24_000))
    assert len(counts) == 24
    assert chisquare(list(counts.values())).pvalue > 0.01


def test_an_order_depends_on_nothing_but_the_question(tmp_path: Path, tasks: Sequence[Task]) -> None:
    rows = [made_up(number) for number in range(198)]
    random.Random(1).shuffle(rows)
    again = GPQA.load(write(tmp_path / "other.csv", rows[:40]))
    known = {task.id: task for task in tasks}
    assert all((known[task.id].question, known[task.id].answer) == (task.question, task.answer) for task in again)
    recorded = [(0, 1, 3, 2), (3, 2, 1, 0), (1, 3, 0, 2)]
    assert [order_of(f"made-up question {number}") for number in range(3)] == recorded


async def test_the_gold_is_right_and_every_other_letter_wrong(tasks: Sequence[Task]) -> None:
    for task in tasks:
        rewards = {letter: await score(task, boxed(letter)) for letter in LETTERS}
        assert rewards == {letter: float(letter == task.answer) for letter in LETTERS}
        assert await score(task, wrong_letter(task)) == 0
        right = task.meta["options"][LETTERS.index(task.answer)]
        assert right == f"{task.id.removeprefix('gpqa_diamond-rec')} gigaparsnips"


NAMES_B = (
    *("B", " b ", "(B)", "B.", "\\text{B}", "\\mathbf{(B)}", "$B$", "Option B", "20 m", "\\text{20 m}"),
    *("B. 20 m", "(B) 20 m"),
)
NAMES_NONE = ("B: 10 m", "A or B", "A, B", "AB", "E", "20 km", "", "not B", "C D", "Β", "10 m")


@pytest.mark.parametrize(
    ("answer", "letter"), [(answer, "B") for answer in NAMES_B] + [(answer, None) for answer in NAMES_NONE]
)
def test_a_letter_is_named_alone_with_its_option_or_by_it(answer: str, letter: str | None) -> None:
    """An option that occurs twice names no letter."""
    assert parse_letter(answer, ["10 m", "20 m", "10 m", "40 m"]) == letter


@given(st.text(max_size=30))
def test_no_text_names_a_letter_without_holding_it(answer: str) -> None:
    options = ["first option", "second option", "third option", "fourth option"]
    letter = parse_letter(answer, options)
    assert letter is None or letter in answer.upper() or "option" in answer


async def test_a_letter_outside_the_block_or_of_a_cut_attempt_is_none(tasks: Sequence[Task]) -> None:
    right = tasks[0].answer
    assert await score(tasks[0], f"The answer is {right}. \\boxed{{{right}}}") == 0
    attempt = attempt_at(tasks[0], boxed(right), is_truncated=True)
    assert await ChoiceJudge().score(attempt, deadline=None) == Scored(reward=0.0, method="truncated")


def test_the_canary_is_kept_and_the_questions_are_hidden(tasks: Sequence[Task]) -> None:
    assert {task.meta["canary"] for task in tasks} == {"no canary: made up"}
    assert all(task.meta[HIDDEN] is True for task in tasks) and not GPQA.source.repository


@pytest.mark.parametrize("name", ["Question", "Correct Answer", "Incorrect Answer 3"])
def test_a_file_that_lacks_a_column_is_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "bad.csv", [made_up(1), made_up(2) | {name: " "}])
    with pytest.raises(ConfigError, match=f"row 2 has no '{name}'"):
        GPQA.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="as CSV in UTF-8"):
        GPQA.load(path)
