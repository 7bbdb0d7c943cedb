"""A copy of BFCL v3's files becomes tasks, or one sentence with the error and its fix; composed scores."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.types import Task
from rocstar.train.evaluation.benchmarks.bfcl.bfcl import BFCL_V3, overall
from rocstar.train.evaluation.benchmarks.bfcl.entries import INSTALL, LOCAL, SIZES, load_tasks
from rocstar.train.recipe.errors import ConfigError

from .bfcl_package import make_package


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return make_package(tmp_path)


def of(package: Path, category: str) -> Task:
    return next(task for task in load_tasks(package) if task.meta["category"] == category)


def test_every_category_is_read_in_order(package: Path) -> None:
    assert [task.meta["category"] for task in load_tasks(package)] == list(SIZES)
    assert sum(SIZES.values()) == BFCL_V3.num_questions == 4441
    assert INSTALL in BFCL_V3.source.file


@pytest.mark.parametrize("inside", [".", "..", "data"])
def test_the_folder_may_be_the_package_or_lie_beside_it(package: Path, inside: str) -> None:
    assert load_tasks(package / inside) == load_tasks(package)


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
    def content(folder: str) -> list[object]:
        tasks = load_tasks(make_package(tmp_path / folder))
        return [(t.id, t.question, {k: v for k, v in t.meta.items() if k != LOCAL}) for t in tasks]

    assert content("a") == content("b")
    assert of(tmp_path / "a", "multi_turn_base").meta[LOCAL] == {"package": str(tmp_path / "a" / "bfcl_eval")}


def test_another_simulated_class_is_another_set(package: Path) -> None:
    before = of(package, "multi_turn_base").meta["classes"]
    module = package / "eval_checker" / "multi_turn_eval" / "func_source_code" / "ticket_api.py"
    module.write_text(module.read_text() + "\n# changed\n")
    assert of(package, "multi_turn_base").meta["classes"] != before


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("BFCL_v3_simple.json", lambda text: text[:20], "line 1 is not JSON"),
        ("BFCL_v3_simple.json", lambda _: '{"id": "simple_0", "function": []}', "'simple_0' is not of the form"),
        ("BFCL_v3_simple.json", lambda _: "[]", "line 1 is not a JSON object"),
        ("BFCL_v3_simple.json", lambda text: text.replace('"string"', '"colour"'), "KeyError: 'colour'"),
        ("possible_answer/BFCL_v3_simple.json", lambda _: "", "of that name in possible_answer lacks it"),
        ("BFCL_v3_java.json", None, "BFCL_v3_java.json: "),
    ],
)
def test_a_damaged_copy_is_refused_with_its_place(
    package: Path, name: str, damage: Callable[[str], str] | None, message: str
) -> None:
    path = package / "data" / name
    if damage is None:
        path.unlink()
    else:
        path.write_text(damage(path.read_text()))
    with pytest.raises(ConfigError, match=message) as refused:
        load_tasks(package)
    assert str(package) in str(refused.value)


def test_a_missing_copy_is_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_tasks(tmp_path)
    assert INSTALL in str(refused.value)


MEANS = st.fixed_dictionaries({category: st.floats(0, 1) for category in SIZES})


@given(MEANS)
def test_overall_is_the_mean_of_three_parts(means: dict[str, float]) -> None:
    simple = fmean([means["simple"], means["java"], means["javascript"]])
    parts = [means[c] for c in ("multiple", "parallel", "parallel_multiple", "irrelevance")]
    questions = {"simple": 258, "multiple": 1053, "parallel": 16, "parallel_multiple": 24}
    questions |= {"irrelevance": 882, "relevance": 18}
    live = sum(n * means[f"live_{c}"] for c, n in questions.items()) / 2251
    turns = fmean(means[f"multi_turn_{c}"] for c in ("base", "miss_func", "miss_param", "long_context"))
    expected = {"non_live": fmean([simple, *parts]), "live": live, "multi_turn": turns}
    expected["overall"] = fmean(expected.values())
    assert overall(means) == pytest.approx(expected)


@given(MEANS, st.floats(0, 1), st.floats(0, 1))
def test_the_stricter_irrelevance_has_scores_of_its_own(means: dict[str, float], first: float, second: float) -> None:
    strict = {"irrelevance/no_call_attempted": first, "live_irrelevance/no_call_attempted": second}
    found = overall(means | strict)
    replaced = overall(means | {"irrelevance": first, "live_irrelevance": second})
    assert {k: v for k, v in found.items() if "/" not in k} == overall(means)
    for name in ("non_live", "live", "overall"):
        assert found[f"{name}/no_call_attempted"] == replaced[name]


def test_a_part_without_all_its_categories_is_left_out() -> None:
    means = dict.fromkeys(SIZES, 1.0)
    del means["java"]
    assert overall(means) == {"live": 1.0, "multi_turn": 1.0}
    assert overall({}) == {}
