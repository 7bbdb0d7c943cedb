"""IFEval's loader rejects other data, and its judge scores the strict prompt-level verdict."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.types import Scored, Task
from rocstar.train.evaluation.benchmarks.ifeval.ifeval import InstructionJudge, load_tasks, measures, pooled
from rocstar.train.recipe.errors import ConfigError

from ..eval_folders import attempt_at

ROW = {
    "key": 7,
    "prompt": "Name two rivers without a comma.",
    "instruction_id_list": ["punctuation:no_comma", "keywords:frequency"],
    "kwargs": [
        {"num_words": None, "relation": None},
        {"keyword": "river", "frequency": 2.0, "relation": "at least", "num_words": None},
    ],
}


def tasks_of(tmp_path: Path, **changes: Any) -> list[Task]:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(ROW | changes) + "\n", encoding="utf-8")
    return load_tasks(file)


def test_a_row_becomes_a_task_without_the_arguments_of_others(tmp_path: Path) -> None:
    (task,) = tasks_of(tmp_path)
    assert (task.id, task.question) == ("ifeval-7", ROW["prompt"])
    assert task.meta["kwargs"] == [{}, {"keyword": "river", "frequency": 2, "relation": "at least"}]
    assert tasks_of(tmp_path, id="ifeval-7")[0].id == task.id


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kwargs": [{}]}, "2 instructions with 1 kwargs"),
        ({"instruction_id_list": ["punctuation:no_comma", "keywords:rhyme"]}, "'keywords:rhyme'"),
        ({"kwargs": [{}, {"keyword": "river", "frequency": 2, "relation": "at most"}]}, "'at most'"),
        ({"kwargs": [{}, {"keyword": "(", "frequency": 2, "relation": "at least"}]}, "keyword = '('"),
        ({"kwargs": [{}, {"keyword": "river", "relation": "at least"}]}, "frequency = None"),
        ({"prompt": None}, "Pass a copy of IFEval"),
        (
            {
                "instruction_id_list": ["length_constraints:nth_paragraph_first_word"],
                "kwargs": [{"num_paragraphs": 2, "nth_paragraph": 3, "first_word": "a"}],
            },
            "paragraph 3",
        ),
        (
            {
                "instruction_id_list": ["keywords:letter_frequency"],
                "kwargs": [{"letter": "ab", "let_frequency": 3, "let_relation": "at least"}],
            },
            "letter = 'ab'",
        ),
    ],
)
def test_a_row_that_is_none_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=r"rows\.jsonl, line 1") as caught:
        tasks_of(tmp_path, **changes)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reward", "method"),
    [
        ("One river is the Elbe. A river too is the Po.", 1.0, "2 of 2 followed"),
        ("One river is the Elbe, the other the Po.", 0.0, "0 of 2 followed"),
        ("The Elbe and the Po.", 0.0, "1 of 2 followed"),
        ("<think>Commas, no.</think>\n\nA river: Elbe. A river: Po.", 1.0, "2 of 2 followed"),
        ("<think>A river and a river", 0.0, "0 of 2 followed"),
        ("", 0.0, "0 of 2 followed"),
    ],
)
async def test_the_reward_is_the_strict_verdict_on_all(tmp_path: Path, text: str, reward: float, method: str) -> None:
    (task,) = tasks_of(tmp_path)
    outcome = await InstructionJudge().score(attempt_at(task, text), deadline=None)
    assert outcome == Scored(reward=reward, method=method)
    assert measures(attempt_at(task, text))["instruction_strict"] == int(method[0]) / 2


async def test_a_truncated_attempt_scores_0_and_a_passed_deadline_is_no_verdict(tmp_path: Path) -> None:
    (task,) = tasks_of(tmp_path)
    attempt = attempt_at(task, "One river. Two river.", is_truncated=True)
    assert await InstructionJudge().score(attempt, deadline=None) == Scored(reward=0.0, method="truncated")
    assert set(measures(attempt).values()) == {0.0}
    past = asyncio.get_running_loop().time() - 1
    with pytest.raises(TimeoutError):
        await InstructionJudge().score(attempt_at(task, "One river. Two river."), deadline=past)


def test_a_prompt_with_three_instructions_counts_thrice_when_pooled() -> None:
    scored = []
    for count, share in ((1, 1.0), (3, 1 / 3), (2, 0.5)):
        task = Task(id="", source="", question="", answer="", meta={"instruction_id_list": ["x"] * count})
        columns = {"instruction_strict": share, "instruction_loose": 1.0}
        scored.append((task, Scored(reward=0.0, method=""), columns))
    means = {"instruction_strict_pooled": 3 / 6, "instruction_loose_pooled": 1.0}
    assert pooled(scored) == pytest.approx(means) and pooled([]) == {}
