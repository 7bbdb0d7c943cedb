"""The other columns of a row: kept as JSON, turned to text by rule, or refused by name; never too much."""

import datetime
import decimal
import json
import math
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.rows import MAX_META_BYTES, meta_of

NONE: frozenset[str] = frozenset()
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(row=st.dictionaries(st.text(max_size=4), json_values, max_size=3))
def test_json_is_kept_as_it_is(row: dict[str, Any]) -> None:
    assert meta_of(row, without=NONE, where="here") == row
    assert meta_of(row, without=frozenset(row), where="here") == {}


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ((1, "a"), [1, "a"]),
        (datetime.date(2024, 2, 29), "2024-02-29"),
        (datetime.datetime(2024, 2, 29, 1, tzinfo=datetime.UTC), "2024-02-29T01:00:00+00:00"),
        (datetime.time(1, 2), "01:02:00"),
        (datetime.timedelta(hours=1), "1:00:00"),
        (decimal.Decimal("1.50"), "1.50"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (b"\x00\xff", "AP8="),
        ({1: [b""]}, {"1": [""]}),
    ],
)
def test_what_json_has_not_arrives_as_text(value: object, kept: object) -> None:
    meta = meta_of({"a": value}, without=NONE, where="here")
    assert meta == {"a": kept}
    json.dumps(meta, allow_nan=False)


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"picture": object()}, ["line 7", "'picture'", "a object", "write the data without"]),
        ({"deep": nested(32)}, ["'deep'", "more than 32 levels deep"]),
        ({"small": 1, "large": "x" * MAX_META_BYTES}, ["'large' alone 262,146", "at most 262,144", "without it"]),
        ({"family": "gcd", "entry": {}}, ["'entry' and 'family'", "reasoning-gym", "rename one"]),
    ],
)
def test_what_cannot_go_with_a_task_is_refused(row: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        meta_of(row, without=NONE, where="line 7")
    assert all(word in str(refused.value) for word in words), str(refused.value)
    assert meta_of(row, without=frozenset(list(row)[-1:]), where="line 7") is not None


def test_the_bounds_are_met_by_what_is_just_small_enough() -> None:
    assert meta_of({"deep": nested(31)}, without=NONE, where="") == {"deep": nested(31)}
    assert meta_of({"large": "x" * (MAX_META_BYTES - 2)}, without=NONE, where="")
