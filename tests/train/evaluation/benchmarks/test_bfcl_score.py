"""BFCL v3's composed scores against their definition, written out."""

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.evaluation.benchmarks.bfcl.bfcl import overall
from rocstar.train.evaluation.benchmarks.bfcl.entries import SIZES

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
def test_the_stricter_irrelevance_has_scores_of_its_own(
    means: dict[str, float], first: float, second: float
) -> None:
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
