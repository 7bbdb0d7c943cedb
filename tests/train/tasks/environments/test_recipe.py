"""[[environments]] of a recipe: what is refused, and the tasks that stages get."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.plan.preflight import load_all_tasks
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe, to_toml
from rocstar.train.tasks import data

GUESS = {"kind": f"{Path(__file__).parent}/guess.py:Guess"}
STAGE = {"steps": 1, "max_response_tokens": 9, "max_turns": 2}


def recipe_of(*environments: dict[str, Any], **sections: Any) -> Any:
    sections = {"stages": [STAGE], "model": {"path": "scratch"}, **sections}
    return load_recipe({"environments": list(environments), **sections})


def seeds(size: int, seed: int = 0) -> dict[str, Any]:
    return {"source": "seeds", "size": size, "seed": seed}


def test_the_tasks_of_environments_are_mixed_by_weight() -> None:
    parts = [{**GUESS, "name": name, "weight": weight, "data": seeds(size)} for name, weight, size in
             (("a", 1.0, 8), ("b", 3.0, 4))]  # fmt: skip
    plain = {"kind": "reasoning_gym", "weight": 2.0,
             "data": {"source": "reasoning_gym", "families": {"gcd": {}}, "size": 5}}  # fmt: skip
    (tasks,) = load_all_tasks(recipe_of(*parts, plain)).stages
    assert Counter(task.environment for task in tasks) == {"a": 8, "b": 24, None: 16}
    assert len({task.id for task in tasks}) == len(tasks), "a repeated task has an id of its own"
    assert len({task.meta["row"]["seed"] for task in tasks if task.environment == "b"}) == 4


def test_weights_that_repeat_too_often_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "MAX_MIXED", 100)
    with pytest.raises(ConfigError, match=r"their weights make 104 tasks of 8, more than 100"):
        load_all_tasks(
            recipe_of(*({**GUESS, "name": n, "weight": w, "data": seeds(4)} for n, w in (("a", 1), ("b", 25))))
        )


def test_rows_need_neither_question_nor_answer_and_keep_all_columns(tmp_path: Path) -> None:
    rows = [{"question": "Q?", "answer": 4, "secret": 1}, {"secret": 2}, {"secret": 3}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "heldout.jsonl").write_text('{"secret": 3}\n')
    heldout = {"source": f"{tmp_path}/heldout.jsonl", "environment": "Guess"}
    recipe = recipe_of({**GUESS, "data": {"source": f"{tmp_path}/rows.jsonl"}}, eval=[{"data": heldout}])
    tasks = load_all_tasks(recipe)
    assert [(t.question, t.answer, t.meta["row"]) for t in tasks.stages[0]] == [
        ("Q?", "4", rows[0]),
        ("", "", rows[1]),
    ]
    assert tasks.left_out == ["environments: 1 of 3 tasks are questions of eval, and left out"]
    assert to_toml(load_recipe({**recipe.model_dump(exclude_none=True)})) == to_toml(recipe)


def test_a_stage_may_name_its_environment() -> None:
    recipe = recipe_of(GUESS, stages=[{**STAGE, "data": {**seeds(3), "environment": "Guess"}}])
    assert [task.environment for task in load_all_tasks(recipe).stages[0]] == ["Guess"] * 3


def test_a_plain_row_must_not_look_like_one_of_an_environment(tmp_path: Path) -> None:
    row = {"question": "Q", "answer": "1", "environment": "x", "row": {}}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    with pytest.raises(ConfigError, match="has columns 'environment' and 'row', by which a task of an environment"):
        load_all_tasks(recipe_of(stages=[{**STAGE, "data": {"source": f"{tmp_path}/rows.jsonl"}}]))


@pytest.mark.parametrize(
    ("environments", "sections", "words"),
    [
        ([{"kind": "trl"}], {}, "environment 'trl' is not known"),
        ([GUESS, GUESS], {}, "two environments are called 'Guess'"),
        ([{**GUESS, "data": {**seeds(4), "environment": "x"}}], {}, "data.environment = 'x': leave it out"),
        ([{"kind": "reasoning_gym"}], {}, "belong together; got data.source = 'seeds'"),
        ([{**GUESS, "data": {"source": "seeds"}}], {}, "source = 'seeds' needs size"),
        ([{**GUESS, "weight": 0}], {}, "weight = 0"),
        ([], {"eval": [{"data": {**seeds(4), "environment": "x"}}]}, "none of the recipe; add [[environments]]"),
        ([GUESS], {"eval": [{"data": {**seeds(4), "environment": "Gues"}}]}, "did you mean 'Guess'?"),
        ([{**GUESS, "max_episodes": 1}], {"engine": {"deterministic": True}}, "max_episodes lets attempts wait"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(environments: list[Any], sections: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        recipe_of(*environments, **sections)
    assert words in str(refused.value) and "\n" not in str(refused.value)
