"""Orders and groups travel without loss; what is neither is refused."""

import dataclasses
import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.nodes.node import GroupOrder
from rocstar.engine.nodes.wire import NodeWireError, can_travel, decode_group, decode_order, encode_group, encode_order
from rocstar.engine.rollout.rollout import RolloutLimits
from rocstar.engine.types import (
    Failed,
    FinishReason,
    Group,
    Origin,
    Scored,
    Segment,
    Task,
    ToolCall,
    ToolResult,
    Turn,
    VersionSpan,
)
from tests.fakes.trajectories import make_trajectory

any_text = st.text(st.characters(exclude_categories=[]), max_size=8)  # half surrogates too
positions = st.integers(0, 2**40)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | any_text,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(any_text | st.integers(), inner, max_size=3)
    ),
    max_leaves=5,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text | st.just("~"), inner, max_size=3),
    max_leaves=5,
)
calls = st.builds(
    ToolCall,
    name=st.none() | any_text,
    arguments=st.none() | st.dictionaries(any_text | st.just("~"), json_values, max_size=2),
    malformed=st.none() | any_text,
)
results = st.builds(
    ToolResult,
    status=st.sampled_from(["ok", "error", "malformed_call"]),
    is_error=st.booleans(),
    text=any_text,
    restarted=st.booleans(),
    replayed=st.booleans(),
)
executed = st.lists(st.tuples(calls, results), max_size=3)
turns = st.builds(
    lambda pairs, is_executed, **rest: Turn(
        calls=tuple(call for call, _ in pairs),
        results=tuple(result for _, result in pairs) if is_executed else (),
        **rest,
    ),
    executed,
    st.booleans(),
    start=positions,
    end=positions,
    text=any_text,
    stopped=st.booleans(),
)
outcomes = st.builds(Scored, reward=st.sampled_from([0.0, 1.0]), method=any_text) | st.builds(
    Failed, kind=any_text, retryable=st.booleans(), detail=any_text
)
orders = st.builds(
    GroupOrder,
    task=st.builds(
        Task,
        id=any_text,
        source=any_text,
        question=any_text,
        answer=any_text,
        meta=st.dictionaries(any_text, plain, max_size=2),
        context=st.lists(st.dictionaries(any_text, json_values, max_size=2), max_size=2).map(tuple),
    ),
    step=st.integers(0, 2**31),
    seed=st.integers(0, 2**62),
    size=st.integers(1, 3),
    limits=st.builds(
        RolloutLimits,
        max_response_tokens=positions,
        max_turns=positions,
        max_tool_tokens=positions,
        timeout_s=st.floats(0.1, 1e6),
    ),
    temperature=st.floats(0.0, 4.0),
)


def tuples_of(kind: Any, **fields: Any) -> Any:
    return st.lists(st.builds(kind, **fields), max_size=3).map(tuple)


@st.composite
def groups(draw: Any) -> tuple[GroupOrder, Group]:
    order = draw(orders)
    trajectories = []
    for sibling in range(order.size):
        ids = draw(st.lists(st.integers(0, 2**31 - 1), max_size=12))
        logprob = st.none() | st.floats(max_value=0.0, allow_nan=False)
        made = make_trajectory(task=order.task, seed=order.seed, step=order.step, sibling=sibling)
        changed = {
            "ids": ids,
            "logprobs": draw(st.lists(logprob, min_size=len(ids), max_size=len(ids))),
            "segments": draw(tuples_of(Segment, start=positions, end=positions, origin=st.sampled_from(Origin))),
            "version_spans": draw(tuples_of(VersionSpan, start=positions, end=positions, version=positions)),
            "turns": tuple(draw(st.lists(turns, max_size=3))),
            "finish_reason": draw(st.sampled_from(FinishReason)),
            "outcome": draw(outcomes),
        }
        trajectories.append(dataclasses.replace(made, **changed))
    return order, Group(task=order.task, trajectories=tuple(trajectories))


def bits(logprobs: Any) -> list[bytes | None]:
    return [None if math.isnan(p) else struct.pack("<d", p) for p in logprobs.tolist()]


@given(groups())
def test_a_group_comes_back_as_it_was(made: tuple[GroupOrder, Group]) -> None:
    order, group = made
    back = decode_group(encode_group(group), order)
    assert back == group
    for t, other in zip(back.trajectories, group.trajectories, strict=True):
        assert bits(t.logprobs) == bits(other.logprobs)  # == does not tell -0.0 from 0.0


@given(orders, st.floats(0.5, 1e6))
def test_an_order_comes_back_as_it_was(order: GroupOrder, timeout_s: float) -> None:
    assert can_travel(order.task)
    back, left_s = decode_order(encode_order(order, timeout_s=timeout_s))
    assert (back, left_s) == (order, timeout_s)
    assert repr(back) == repr(order)  # a tuple in `meta` is no list, -0.0 no 0.0


def test_a_task_that_cannot_travel_is_known_before(order_of: Any) -> None:
    order = order_of("a", meta={"x": object()})
    assert not can_travel(order.task)
    with pytest.raises(NodeWireError, match="object is no plain value"):
        encode_order(order, timeout_s=1.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"v": 1}, "not of version 5"),
        ({"size": 0}, "0 from 0"),
        ({"first": -1}, "from -1"),
        ({"size": True}, r"Expected `int`, got `bool` - at `\$\.size`"),
        ({"seed": "1"}, r"Expected `int`, got `str` - at `\$\.seed`"),
        ({"timeout_s": -1.0}, "-1.0 s"),
        ({"timeout_s": math.nan}, "nan s"),
        ({"temperature": -1.0}, "temperature -1"),
        ({"task": ["a", "b", "c", 4, {}, []]}, r"Expected `str`, got `int` - at `\$\.task\[3\]`"),
        ({"task": ["a", "b", "c", "d", [], []]}, "is no object"),
        ({"task": ["a", "b", "c", "d", {}, {}]}, "Expected `array`, got `object`"),
        ({"task": ["a", "b", "c", "d", {}, ["x"]]}, "'x' is no object"),
        ({"task": ["a"]}, "no order"),
        ({"limits": {}}, "max_response_tokens"),
    ],
)
def test_what_is_no_order_is_refused(order_of: Any, change: dict[str, Any], reason: str) -> None:
    body = json.loads(encode_order(order_of("a"), timeout_s=1.0)) | change
    with pytest.raises(NodeWireError, match=reason):
        decode_order(json.dumps(body).encode())


def test_what_is_no_json_is_refused() -> None:
    for body in (b"", b"[]", b"\xff", b"[" * 100_000):
        with pytest.raises(NodeWireError):
            decode_order(body)


@given(groups())
def test_a_group_of_other_siblings_is_refused(made: tuple[GroupOrder, Group]) -> None:
    order, group = made
    with pytest.raises(NodeWireError, match="ordered were"):
        decode_group(encode_group(group), dataclasses.replace(order, size=order.size + 1))


def one_sibling(order: GroupOrder, **changed: Any) -> Group:
    made = make_trajectory(task=order.task, **({"seed": order.seed, "step": order.step} | changed))
    return Group(task=order.task, trajectories=(made,))


@pytest.mark.parametrize("changed", [{"seed": 8}, {"step": 2}, {"ids": (1,)}, {"logprobs": ()}])
def test_a_group_that_was_not_ordered_so_is_refused(order_of: Any, changed: dict[str, Any]) -> None:
    order = order_of("a", size=1)
    decode_group(encode_group(one_sibling(order)), order)
    with pytest.raises(NodeWireError):
        decode_group(encode_group(one_sibling(order, **changed)), order)


def test_a_broken_group_is_refused(order_of: Any) -> None:
    order = order_of("a", size=1)
    body = encode_group(one_sibling(order))
    damaged = [body[:at] + bytes([body[at] ^ 255]) + body[at + 1 :] for at in range(0, len(body), 7)]
    for broken in (b"", body[:-1], body + b"x", body * 2, *damaged):
        with pytest.raises(NodeWireError):
            decode_group(broken, order)
