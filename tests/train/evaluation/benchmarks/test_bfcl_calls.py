"""The rule for one answer of BFCL v3, on made-up functions."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.evaluation.benchmarks.bfcl.calls import Call, Due, Language, match_due_calls


def function(name: str, required: Sequence[str] = (), **types: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """A description; a type may come with its items."""
    properties = {p: {"type": t} if isinstance(t, str) else t for p, t in types.items()}
    return {"name": name, "parameters": {"properties": properties, "required": list(required)}}


BAKE = function(
    "bake",
    ["cake"],
    cake="string",
    eggs="integer",
    hours="float",
    vegan="boolean",
    toppings={"type": "array", "items": {"type": "string"}},
    weights={"type": "array", "items": {"type": "float"}},
    oven="dict",
    layers={"type": "array", "items": {"type": "dict"}},
    shelf="any",
)
CAKE = ["lemon cake", "Zitronenkuchen"]


def is_due(arguments: Mapping[str, Any], possible: Mapping[str, Any], name: str = "bake") -> bool:
    return match_due_calls([BAKE], [(name, arguments)], [{"bake": {"cake": CAKE, **possible}}])


@pytest.mark.parametrize(
    ("arguments", "possible", "right"),
    [
        ({"cake": "lemon cake"}, {}, True),
        ({"cake": "Zitronenkuchen"}, {}, True),
        ({"cake": "LEMON_CAKE."}, {}, True),
        ({"cake": "lemon  ca-ke"}, {}, True),
        ({"cake": "lemon cakes"}, {}, False),
        ({}, {}, False),
        ({"cake": "lemon cake", "salt": 1}, {}, False),
        ({"cake": "lemon cake", "eggs": 3}, {}, False),
        ({"cake": "lemon cake", "eggs": 3}, {"eggs": [2, 3]}, True),
        ({"cake": "lemon cake", "eggs": 3.0}, {"eggs": [2, 3]}, False),
        ({"cake": "lemon cake", "eggs": "3"}, {"eggs": [2, 3]}, False),
        ({"cake": "lemon cake", "eggs": True}, {"eggs": [1]}, False),
        ({"cake": "lemon cake"}, {"eggs": [2, 3]}, False),
        ({"cake": "lemon cake"}, {"eggs": [2, ""]}, True),
        ({"cake": "lemon cake", "hours": 2}, {"hours": [2.0]}, True),
        ({"cake": "lemon cake", "hours": 2.5}, {"hours": [2.0]}, False),
        ({"cake": "lemon cake", "vegan": True}, {"vegan": [True]}, True),
        ({"cake": "lemon cake", "vegan": 1}, {"vegan": [True]}, False),
        ({"cake": "lemon cake", "toppings": ["Nut", "plum"]}, {"toppings": [["nut", "plum"]]}, True),
        ({"cake": "lemon cake", "toppings": ["plum", "nut"]}, {"toppings": [["nut", "plum"]]}, False),
        ({"cake": "lemon cake", "toppings": "nut"}, {"toppings": [["nut"]]}, False),
        ({"cake": "lemon cake", "weights": [1, 2]}, {"weights": [[1.0, 2.0]]}, False),
        ({"cake": "lemon cake", "weights": [1, 2]}, {"weights": [[1, 2]]}, True),
        ({"cake": "lemon cake", "oven": {"heat": 180}}, {"oven": [{"heat": [180, 190]}]}, True),
        ({"cake": "lemon cake", "oven": {"heat": 200}}, {"oven": [{"heat": [180, 190]}]}, False),
        ({"cake": "lemon cake", "oven": {}}, {"oven": [{"heat": [180, ""]}]}, True),
        ({"cake": "lemon cake", "oven": {}}, {"oven": [{"heat": [180]}]}, False),
        ({"cake": "lemon cake", "oven": {"heat": 180, "fan": 1}}, {"oven": [{"heat": [180]}]}, False),
        ({"cake": "lemon cake", "layers": [{"cm": 2}]}, {"layers": [[{"cm": [2]}]]}, True),
        ({"cake": "lemon cake", "layers": [{"cm": 2}] * 2}, {"layers": [[{"cm": [2]}]]}, False),
        # Possible values of another type than the described one: the name of a variable, unchanged.
        ({"cake": "lemon cake", "eggs": "all_eggs"}, {"eggs": ["all_eggs"]}, True),
        ({"cake": "lemon cake", "eggs": "All eggs"}, {"eggs": ["all_eggs"]}, False),
        ({"cake": "lemon cake", "shelf": 2}, {"shelf": [2]}, True),
        ({"cake": "lemon cake", "shelf": "2"}, {"shelf": ["2"]}, True),
    ],
)
def test_a_call_is_right_with_its_types_and_possible_values(
    arguments: Mapping[str, Any], possible: Mapping[str, Any], right: bool
) -> None:
    assert is_due(arguments, possible) is right


def test_quotes_of_both_kinds_are_one() -> None:
    assert match_due_calls([BAKE], [("bake", {"cake": "mum's"})], [{"bake": {"cake": ['mum"s']}}])


def test_another_name_is_wrong() -> None:
    assert not is_due({"cake": "lemon cake"}, {}, name="fry")


def test_no_call_is_right_where_none_is_due_only() -> None:
    assert match_due_calls([BAKE], [], [])
    assert not match_due_calls([BAKE], [], [{"bake": {"cake": CAKE}}])
    assert not match_due_calls([BAKE], [("bake", {"cake": "lemon cake"})], [])


FRY = function("fry", ["what"], what="string", minutes="integer")
DUE: list[Due] = [
    {"fry": {"what": ["egg"], "minutes": [3, ""]}},
    {"bake": {"cake": CAKE}},
    {"fry": {"what": ["egg", "fish"], "minutes": [3]}},
]
CALLS: list[Call] = [
    ("fry", {"what": "egg"}),
    ("bake", {"cake": "lemon cake"}),
    ("fry", {"what": "fish", "minutes": 3}),
]


@given(st.permutations(CALLS))
def test_several_calls_are_right_in_any_order(calls: list[Call]) -> None:
    assert match_due_calls([BAKE, FRY], calls, DUE)


@given(st.permutations(CALLS), st.integers(0, 2))
def test_each_due_call_needs_one_of_its_own(calls: list[Call], k: int) -> None:
    assert not match_due_calls([BAKE, FRY], [*calls[:k], *calls[k + 1 :]], DUE)
    assert not match_due_calls([BAKE, FRY], [*calls[:k], *calls[k + 1 :], calls[k - 1]], DUE)
    assert not match_due_calls([BAKE, FRY], [*calls, calls[k]], DUE)


def test_calls_are_taken_greedily_in_the_order_of_the_due_ones() -> None:
    """Upstream does so: the first due call takes the first call that fits, though another would do."""
    due: list[Due] = [{"fry": {"what": ["egg", "fish"]}}, {"fry": {"what": ["egg"]}}]
    assert match_due_calls([FRY], [("fry", {"what": "fish"}), ("fry", {"what": "egg"})], due)
    assert not match_due_calls([FRY], [("fry", {"what": "egg"}), ("fry", {"what": "fish"})], due)


def test_equal_calls_of_different_types_are_distinct() -> None:
    vegan = function("set", vegan="any")
    due: list[Due] = [{"set": {"vegan": [True]}}, {"set": {"vegan": [1]}}]
    assert match_due_calls([vegan], [("set", {"vegan": 1}), ("set", {"vegan": True})], due)
    assert not match_due_calls([vegan], [("set", {"vegan": 1}), ("set", {"vegan": 1})], due)


STEER = function(
    "steer", angle="float", laps="long", fast="boolean", names={"type": "ArrayList", "items": {"type": "String"}}
)


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ({"angle": "1.5f", "laps": "3L", "fast": "true"}, True),
        ({"angle": "1.5", "laps": "3L", "fast": "true"}, False),
        ({"angle": "1.5f", "laps": "3", "fast": "true"}, False),
        ({"angle": "1.5f", "laps": 3, "fast": "true"}, False),
        ({"angle": "1.5f", "laps": "3L", "fast": "True"}, False),
        ({"angle": "1.5f", "laps": "3L", "names": 'new ArrayList<>(Arrays.asList("a", "b"))'}, True),
        ({"angle": "1.5f", "laps": "3L", "names": '["a", "b"]'}, False),
    ],
)
def test_java_arguments_are_literals_in_text(arguments: Mapping[str, Any], right: bool) -> None:
    possible: Mapping[str, list[Any]] = {"angle": [1.5], "laps": [3], "fast": [True, ""], "names": [["a", "b"], ""]}
    calls: list[Call] = [("steer", arguments)]
    assert match_due_calls([STEER], calls, [{"steer": possible}], language=Language.java) is right
