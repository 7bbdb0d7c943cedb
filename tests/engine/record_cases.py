"""Trajectories of every shape for the tests of records."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from rocstar.engine.types import (
    Failed,
    FinishReason,
    Fork,
    Given,
    Origin,
    Scored,
    Segment,
    Span,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryKey,
    TrajectoryTimes,
    Turn,
    TurnTimes,
    VersionSpan,
)

text = st.text(max_size=8)
# With half surrogates: a policy can write them.
any_text = st.text(st.characters(exclude_categories=[]), max_size=8)
integers = st.integers(0, 2**62)
logprobs = st.floats(max_value=0.0, allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=5,
)
good = st.builds(ToolCall, name=any_text, arguments=st.dictionaries(any_text, values, max_size=2))
bad = st.builds(ToolCall, name=st.none(), arguments=st.none(), malformed=text)
results = st.builds(
    ToolResult,
    status=st.sampled_from(["ok", "error", "malformed_call"]),
    is_error=st.booleans(),
    text=text,
    restarted=st.booleans(),
    replayed=st.booleans(),
)


seconds = st.integers(0, 10**7).map(lambda tenths: tenths / 10**4)
spans = st.builds(Span, seconds, seconds)
times = st.builds(
    TrajectoryTimes,
    began=seconds,
    ended_s=seconds,
    granted_s=st.none() | seconds,
    judged=st.none() | spans,
    turns=st.lists(
        st.builds(TurnTimes, written=spans, calls=st.lists(st.none() | spans, max_size=2).map(tuple)), max_size=2
    ).map(tuple),
)


@st.composite
def turns(draw: Any) -> Turn:
    calls = draw(st.lists(good | bad, max_size=3))
    executed = draw(st.booleans())
    return Turn(
        start=draw(integers),
        end=draw(integers),
        text=draw(text),
        stopped=draw(st.booleans()),
        calls=tuple(calls),
        results=tuple(draw(results) for _ in calls) if executed else (),
    )


scalars = st.none() | st.booleans() | integers | logprobs | text
hashable = scalars | st.tuples(scalars, scalars) | st.frozensets(scalars, max_size=2)
flat = hashable | st.lists(hashable, max_size=2) | st.sets(hashable, max_size=2)
plain = flat | st.tuples(flat) | st.lists(flat, max_size=2) | st.dictionaries(hashable, flat, max_size=2)
metas = st.dictionaries(st.sampled_from(["~", "of", "entry"]), plain, max_size=2)


messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "assistant"]), "content": any_text},
    optional={"tool_calls": st.lists(st.dictionaries(st.sampled_from(["~", "a"]), scalars), max_size=2)},
)


def tuples(of: Any, **fields: Any) -> Any:
    return st.lists(st.builds(of, **fields), max_size=3).map(tuple)


trajectories = st.builds(
    Trajectory,
    key=st.builds(
        TrajectoryKey,
        seed=integers,
        step=integers,
        task_id=st.just("t"),
        sibling=integers,
        branch=st.sampled_from(["", "3.1", "12.1/15.2"]),
    ),
    task=st.builds(
        Task,
        id=st.just("t"),
        source=text,
        question=any_text,
        answer=text,
        meta=metas,
        context=st.lists(messages, max_size=2).map(tuple),
    ),
    ids=st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple),
    logprobs=st.lists(st.none() | logprobs, max_size=5).map(tuple),
    segments=tuples(Segment, start=integers, end=integers, origin=st.sampled_from(Origin)),
    version_spans=tuples(VersionSpan, start=integers, end=integers, version=integers),
    turns=st.lists(turns(), max_size=3).map(tuple),
    finish_reason=st.sampled_from(FinishReason),
    outcome=st.builds(Scored, reward=st.sampled_from([0.0, 1.0]), method=text)
    | st.builds(Failed, kind=text, retryable=st.booleans(), detail=any_text),
    times=st.none() | times,
    fork=st.none() | st.builds(Fork, parent=st.sampled_from(["", "12.1"]), turns=integers, start=integers),
    given=st.none() | st.builds(Given, answer=st.none() | any_text, reward=st.none() | st.just(0.5)),
)


@st.composite
def fitting_trajectories(draw: Any) -> Trajectory:
    """Those with a log-prob, or None, for each token."""
    made: Trajectory = draw(trajectories)
    fitting = draw(st.lists(st.none() | logprobs, min_size=len(made.ids), max_size=len(made.ids)))
    return replace(made, logprobs=tuple(fitting))
