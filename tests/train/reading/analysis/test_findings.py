"""Nothing is claimed that the interval does not show."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocstar.engine.charts.drawing import Figure
from rocstar.train.reading.analysis.analysis_page import MIN_TASKS, behind_sentence, class_sentence, figures
from rocstar.train.reading.analysis.statistics.estimates import BootstrapEstimate, ClassShare, ControlComparison, Lead
from rocstar.train.reading.analysis.token_classes import CLASSES, TokenClass

numbers = st.floats(0.0, 9.0) | st.sampled_from([1.0, math.inf, math.nan])


@st.composite
def estimates(draw: st.DrawFn) -> BootstrapEstimate:
    low, value, high = sorted(draw(st.tuples(numbers, numbers, numbers)), key=lambda x: (x != x, x))
    low, high = (-math.inf if low != low else low), (math.inf if high != high else high)
    tasks = draw(st.integers(0, 20))
    return BootstrapEstimate(
        value=value, low=low, high=high, num_tasks=tasks, num_tokens=tasks * draw(st.integers(1, 9))
    )


@settings(max_examples=200, deadline=None)
@given(estimates())
def test_a_sentence_claims_what_its_interval_shows_and_nothing_else(e: BootstrapEstimate) -> None:
    difference = BootstrapEstimate(value=0.1, low=-0.1, high=0.3, num_tasks=9, num_tokens=9)
    said = behind_sentence("ok", ControlComparison(ratio=e, difference=difference))
    by_class = class_sentence(TokenClass.call, ClassShare(of_top=difference, of_all=0.2, lift=e, mean_entropy=0.1))
    is_enough = e.num_tasks >= MIN_TASKS and all(map(math.isfinite, (e.value, e.low, e.high)))
    assert ("more often" in said) == (is_enough and e.low > 1)
    assert ("less often" in said) == (is_enough and e.high < 1)
    assert ("no significant difference" in said) == (is_enough and e.low <= 1 <= e.high)
    assert ("more uncertain" in by_class) == (is_enough and e.low > 1)
    assert ("less uncertain" in by_class) == (is_enough and e.high < 1)
    if not is_enough:
        assert "too few" in said or "no token was seen" in said


@pytest.mark.parametrize("width", [340, 1060])
@settings(max_examples=20, deadline=None)
@given(e=estimates())
def test_figures_are_xml_whatever_is_drawn(width: int, e: BootstrapEstimate) -> None:
    shares = [ClassShare(of_top=e, of_all=0.1, lift=e, mean_entropy=0.1) for _ in CLASSES]
    behind = {"any": ControlComparison(ratio=e, difference=e)}
    profiles = {lead: [e] * 5 for lead in Lead}
    analysis: Any = SimpleNamespace(shares=shares, behind=behind, profiles=profiles, window=8)
    *drawn, profile = figures(analysis)
    assert not re.search("NaN|Infinity", json.dumps(profile.as_json()))
    for figure in drawn:
        assert isinstance(figure, Figure)
        text = figure.draw(width=width, height=280)
        ElementTree.fromstring(text)
        assert not re.search("nan|inf", text.partition(">")[2])
