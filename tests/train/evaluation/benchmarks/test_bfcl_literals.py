"""Literals of Java and JavaScript: their values, and robustness against any text."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.evaluation.benchmarks.bfcl.calls import UnknownType, java_value, javascript_value
from rocstar.train.evaluation.benchmarks.bfcl.gold import java_literal, javascript_literal


@pytest.mark.parametrize(
    ("text", "kind", "item", "value"),
    [
        ("-7", "integer", None, -7),
        ("7.0", "integer", None, "7.0"),
        ("2.5f", "float", None, 2.5),
        ("2.5", "float", None, "2.5"),
        ("1e3", "double", None, 1000.0),
        ("9L", "long", None, 9),
        ("true", "boolean", None, True),
        ("yes", "boolean", None, "yes"),
        ('"as it is"', "String", None, '"as it is"'),
        ("anything", "any", None, "anything"),
        ("new int[]{1, 2}", "Array", "integer", [1, 2]),
        ("new int[]{}", "Array", "integer", []),
        ("{1, 2}", "Array", "integer", "{1, 2}"),
        ('new ArrayList<String>() {{ add("a"); add("b"); }}', "ArrayList", "String", ["a", "b"]),
        ("new ArrayList<Long>(Arrays.asList(1L, 2L))", "ArrayList", "long", [1, 2]),
        ("new ArrayList<>()", "ArrayList", None, []),
        ('new HashMap<String, Integer>() {{ put("a", 1); put("b", true); }}', "HashMap", None, {"a": 1, "b": True}),
        ("new HashMap<>()", "HashMap", None, {}),
        ("1" * 5000, "integer", None, "1" * 5000),
    ],
)
def test_java(text: str, kind: str, item: str | None, value: Any) -> None:
    found = java_value(text, kind, item)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "kind", "item", "value"),
    [
        ("'a b'", "String", None, "a b"),
        ("a b", "String", None, "a b"),
        ("3", "integer", None, 3),
        ("3.5", "float", None, 3.5),
        ("3n", "Bigint", None, 3),
        ("false", "Boolean", None, False),
        ("[1, 'b', true]", "array", None, [1, "b", True]),
        ("new Array(1, 2)", "array", "integer", [1, 2]),
        ("[[1, 2], [3]]", "array", "array", [[1, 2], [3]]),
        ("[]", "array", "String", []),
        ("1, 2", "array", None, "1, 2"),
        ("{'a': 1, 'b': [2, 3]}", "dict", None, {"a": 1, "b": [2, 3]}),
        ("{}", "dict", None, {}),
        ("a", "dict", None, "a"),
        ("anything", "any", None, "anything"),
    ],
)
def test_javascript(text: str, kind: str, item: str | None, value: Any) -> None:
    found = javascript_value(text, kind, item)
    assert (found, type(found)) == (value, type(value))


WORDS = st.text("abcXYZ", min_size=1, max_size=5)


@given(st.one_of(st.lists(WORDS), st.dictionaries(WORDS, st.integers(-9, 9))))
def test_what_is_written_is_read_again(value: Any) -> None:
    if isinstance(value, list):
        assert java_value(java_literal(value, "ArrayList", "String"), "ArrayList", "String") == value
        assert javascript_value(javascript_literal(value, "array", "String"), "array", "String") == value
    else:
        assert java_value(java_literal(value, "HashMap"), "HashMap") == value
        assert javascript_value(javascript_literal(value, "dict"), "dict") == value


PIECES = [*'{}[],:)>a" \n', "new", "HashMap<", "()", "put(", "add(", "Array("]


@given(
    st.lists(st.sampled_from(PIECES), max_size=60).map("".join),
    st.sampled_from(["Array", "ArrayList", "HashMap", "array", "dict", "String", "integer"]),
)
def test_no_text_is_too_odd(text: str, kind: str) -> None:
    for read in (java_value, javascript_value):
        try:
            read(text, kind)
        except UnknownType:
            assert kind in ("array", "dict") or read is javascript_value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("HashMap", "new HashMap<>(){" + " " * 5000),
        ("HashMap", "new HashMap<>(){" + "a " * 5000),
        ("HashMap", "new HashMap<" * 900),
        ("array", "[" + "[],\n" * 40),
        ("array", "[[" + "]" * 5000),
        ("dict", "{" + "a" * 9000 + "}"),
        ("dict", "{" + "a:," * 3000 + "}"),
        ("ArrayList", "new ArrayList<>(){{" + "add( " * 2000),
    ],
)
def test_a_text_that_makes_patterns_backtrack_ends(kind: str, text: str) -> None:
    """The first takes hours without the bounds; what fails here is the time limit of tests."""
    read = javascript_value if kind in ("array", "dict") else java_value
    read(text, kind)
