"""A copy of BFCL v3's files becomes tasks, or one sentence with the error and its fix."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rocstar.engine.types import Task
from rocstar.train.evaluation.benchmarks.bfcl.entries import INSTALL, LOCAL, SIZES, find_package, load_tasks
from rocstar.train.recipe.errors import ConfigError

from .bfcl_package import make_package


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return make_package(tmp_path)


def of(package: Path, category: str) -> Task:
    return next(task for task in load_tasks(package) if task.meta["category"] == category)


def test_a_set_has_4441_questions() -> None:
    assert sum(SIZES.values()) == 4441


def test_every_category_is_read_in_order(package: Path) -> None:
    assert [task.meta["category"] for task in load_tasks(package)] == list(SIZES)


@pytest.mark.parametrize("inside", [".", "..", "data"])
def test_the_folder_may_be_the_package_or_lie_beside_it(package: Path, inside: str) -> None:
    assert find_package(package / inside) == package.resolve()


def test_functions_are_shown_as_json_schemas_and_judged_as_described(package: Path) -> None:
    task = of(package, "simple")
    (tool,) = task.meta["functions"]
    assert tool["type"] == "function" and tool["function"]["name"] == "light"
    assert tool["function"]["parameters"]["type"] == "object"
    assert tool["function"]["description"].endswith("in Python 3 syntax.")
    assert task.meta["described"][0]["parameters"]["type"] == "dict"
    assert task.question == "simple_0?" and task.context == ()


def test_java_parameters_are_shown_as_texts(package: Path) -> None:
    (tool,) = of(package, "java").meta["functions"]
    shown = tool["function"]["parameters"]["properties"]["lamp"]
    assert shown["type"] == "string" and "Java String type parameter" in shown["description"]


def test_messages_before_the_last_are_context(package: Path) -> None:
    path = package / "data" / "BFCL_v3_simple.json"
    row = json.loads(path.read_text())
    row["question"] = [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Light?"}]]
    path.write_text(json.dumps(row))
    task = of(package, "simple")
    assert (task.question, [m["content"] for m in task.context]) == ("Light?", ["Be brief."])


def test_held_functions_come_with_a_message_of_the_user(package: Path) -> None:
    task = of(package, "multi_turn_miss_func")
    assert [tool["function"]["name"] for tool in task.meta["functions"]] == ["douse", "lamps"]
    (said,) = task.meta["follow_ups"]
    assert '"name": "light"' in said and said.endswith("What about now?")


def test_a_task_says_nothing_of_where_its_copy_lies_but_in_one_place(tmp_path: Path) -> None:
    def told(folder: str) -> list[object]:
        tasks = load_tasks(make_package(tmp_path / folder))
        return [(t.id, t.question, {k: v for k, v in t.meta.items() if k != LOCAL}) for t in tasks]

    assert told("a") == told("b")
    assert of(tmp_path / "a", "multi_turn_base").meta[LOCAL] == {"package": str(tmp_path / "a" / "bfcl_eval")}


def test_another_simulated_class_is_another_set(package: Path) -> None:
    before = of(package, "multi_turn_base").meta["classes"]
    module = package / "eval_checker" / "multi_turn_eval" / "func_source_code" / "ticket_api.py"
    module.write_text(module.read_text() + "\n# changed\n")
    assert of(package, "multi_turn_base").meta["classes"] != before


def cut(package: Path) -> None:
    path = package / "data" / "BFCL_v3_simple.json"
    path.write_text(path.read_text()[:20])


def no_question(package: Path) -> None:
    (package / "data" / "BFCL_v3_simple.json").write_text('{"id": "simple_0", "function": []}')


def no_answer(package: Path) -> None:
    (package / "data" / "possible_answer" / "BFCL_v3_simple.json").write_text("")


def gone(package: Path) -> None:
    (package / "data" / "BFCL_v3_java.json").unlink()


def a_list(package: Path) -> None:
    (package / "data" / "BFCL_v3_simple.json").write_text("[]")


def another_type(package: Path) -> None:
    path = package / "data" / "BFCL_v3_simple.json"
    path.write_text(path.read_text().replace('"string"', '"colour"'))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (cut, "line 1 is not JSON"),
        (no_question, "'simple_0' is not of the form of BFCL v3"),
        (no_answer, "or the file of that name in possible_answer lacks it"),
        (gone, "BFCL_v3_java.json: "),
        (another_type, "KeyError: 'colour'"),
        (a_list, "line 1 is not a JSON object"),
    ],
)
def test_a_damaged_copy_is_refused_with_its_place(
    package: Path, damage: Callable[[Path], None], told: str
) -> None:
    damage(package)
    with pytest.raises(ConfigError, match=told) as refused:
        load_tasks(package)
    assert str(package) in str(refused.value)


def test_a_missing_copy_is_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_tasks(tmp_path)
    assert INSTALL in str(refused.value)
