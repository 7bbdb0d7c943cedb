"""The record holds every bit of a trajectory, and a broken file says where."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.record.json_record import (
    RecordError,
    Verdict,
    decode_outcome,
    encode_outcome,
    from_record,
    to_record,
)
from rocstar.engine.record.reading import read_records, write_records
from rocstar.engine.types import Failed, FinishReason, Scored, Task, ToolCall, ToolResult, Trajectory, VersionSpan
from tests.fakes.trajectories import FakeTurn, make_trajectory

from .record_cases import metas, trajectories

KEPT = Verdict(bucket="kept", penalty_error=0.5, penalty_format=0.25, advantage=0.1 + 0.2)


def record(trajectory: Trajectory, verdict: Verdict = KEPT, **options: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {"stage": "one", "num_answers": 1, "decode": lambda ids: str(list(ids))}
    return to_record(trajectory, verdict, **(defaults | options))


@given(made=st.lists(trajectories, max_size=3))
def test_file_gives_the_trajectories_back(made: list[Trajectory], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("records") / "step.jsonl"
    write_records(path, (record(t) for t in made))
    assert path.read_bytes().isascii()
    records = list(read_records(path))
    again = [from_record(r) for r in records]
    assert again == made and [t.times for t in again] == [t.times for t in made]


def types_of(value: Any) -> Any:
    """The types of a plain value and of all inside it."""
    if isinstance(value, dict):
        return [(types_of(k), types_of(v)) for k, v in value.items()]
    if isinstance(value, set | frozenset):
        return (type(value), sorted(repr(types_of(item)) for item in value))
    return (type(value), [types_of(v) for v in value]) if isinstance(value, list | tuple) else type(value)


@given(meta=metas)
def test_meta_keeps_its_types(meta: dict[str, Any]) -> None:
    """A scorer may tell a tuple from a list."""
    told = record(dataclasses.replace(EXAMPLE, task=dataclasses.replace(EXAMPLE.task, meta=meta)))
    again = from_record(json.loads(json.dumps(told))).task.meta
    assert again == meta and types_of(dict(again)) == types_of(meta)


TASK = {"id": "t", "source": "s", "question": "q", "answer": "a"}
CALL = {"name": "f", "malformed": None, "is_error": False}
EXAMPLE = make_trajectory(
    FakeTurn(
        ids=(11,),
        text="x",
        calls=(ToolCall(name="f", arguments={"code": "1"}),),
        results=(ToolResult(status="ok", is_error=False, text="1"),),
        answer=(12,),
    ),
    FakeTurn(ids=(13,), logprobs=(-0.25,), text="y", stopped=False, calls=(ToolCall(name="f", arguments={}),)),
    prompt=(10,),
    task=Task(**TASK, meta={"entry": (1, 2)}),
    seed=1,
    step=2,
    sibling=3,
    version_spans=(VersionSpan(start=1, end=2, version=4), VersionSpan(start=3, end=4, version=6)),
    finish_reason=FinishReason.max_turns,
    outcome=Scored(reward=1.0, method="exact"),
)


def test_what_has_no_logprob_says_so() -> None:
    """NaN of an engine without log-probs is null: NaN is no JSON."""
    trajectory = dataclasses.replace(EXAMPLE, logprobs=(None, math.nan, -0.5))
    assert record(trajectory)["logprobs"] == [None, None, -0.5]


def test_what_became_of_an_interpreter_is_said_where_it_happened_only() -> None:
    (first, second) = EXAMPLE.turns
    for mark in ("restarted", "replayed"):
        assert not any(mark in call for turn in record(EXAMPLE)["turns"] for call in turn["calls"])
        marked = dataclasses.replace(first, results=(dataclasses.replace(first.results[0], **{mark: True}),))
        made = record(dataclasses.replace(EXAMPLE, turns=(marked, second)))
        assert made["turns"][0]["calls"][0][mark] is True


def test_fields_of_version_1() -> None:
    """Report, viewer and replay read these names."""
    assert record(EXAMPLE) == {
        "v": 1,
        "id": "s2/t/3",
        "step": 2,
        "stage": "one",
        "task": {**TASK, "meta": {"entry": {"~": "tuple", "of": [1, 2]}}},
        "sibling": 3,
        "policy_version": 6,
        "ids": [10, 11, 12, 13],
        "segments": [
            {"start": 0, "end": 1, "origin": "prompt", "text": "[10]"},
            {"start": 1, "end": 2, "origin": "policy", "text": "[11]"},
            {"start": 2, "end": 3, "origin": "tool", "text": "[12]"},
            {"start": 3, "end": 4, "origin": "policy", "text": "[13]"},
        ],
        "logprobs": [None, -0.5, None, -0.25],
        "version_spans": [[1, 2, 4], [3, 4, 6]],
        "turns": [
            {
                "start": 1,
                "end": 2,
                "text": "x",
                "finish": "stop",
                "calls": [{**CALL, "arguments": {"code": "1"}, "status": "ok", "result": "1"}],
            },
            {
                "start": 3,
                "end": 4,
                "text": "y",
                "finish": "length",
                "calls": [{**CALL, "arguments": {}, "status": "not_executed", "result": ""}],
            },
        ],
        "finish_reason": "max_turns",
        "outcome": {"reward": 1.0, "method": "exact", "is_correct": True},
        "penalty": {"error": 0.5, "format": 0.25},
        "decision": {"kept": True, "reason": "kept"},
        "advantage": 0.1 + 0.2,
        "seed": [1, 2, 3],
        "num_answers": 1,
    }


def test_dropped_and_failed() -> None:
    dropped = Verdict(bucket="failed", penalty_error=None, penalty_format=None, advantage=None)
    outcome = Failed(kind="k", retryable=True, detail="d")
    told = record(dataclasses.replace(EXAMPLE, version_spans=(), outcome=outcome), dropped)
    assert told["decision"] == {"kept": False, "reason": "failed"}
    assert told["penalty"] is told["advantage"] is None
    assert told["outcome"] == {"failed": {"kind": "k", "retryable": True, "detail": "d"}}
    assert told["policy_version"] == -1


def test_meta_that_is_not_plain_is_left_out() -> None:
    task = dataclasses.replace(EXAMPLE.task, meta={"entry": object()})
    made = record(dataclasses.replace(EXAMPLE, task=task))
    assert "meta" not in made["task"] and from_record(made).task.meta == {}


def test_the_context_of_a_task_is_recorded_and_one_without_is_as_before() -> None:
    assert "context" not in record(EXAMPLE)["task"]
    context = ({"role": "system", "content": "You are a pirate."},)
    made = record(dataclasses.replace(EXAMPLE, task=dataclasses.replace(EXAMPLE.task, context=context)))
    assert made["task"]["context"] == list(context)
    assert from_record(made).task.context == context


def test_an_unknown_tag_is_no_record() -> None:
    made = record(EXAMPLE)
    made["task"]["meta"] = {"~": "Fraction", "of": [1, 2]}
    with pytest.raises(ValueError, match="unknown tag 'Fraction'"):
        from_record(made)


@pytest.mark.parametrize("version", [None, 0, 2, "1"])
def test_other_versions_are_refused(version: Any) -> None:
    with pytest.raises(ValueError, match=f"record version {version!r}; this reads version 1"):
        from_record(record(EXAMPLE) | {"v": version})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"v": 1, "id": "s2/t', "not JSON"),
        (b"", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"(\xb5/\xfd", "not JSON"),
        (b'{"v": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "not a trajectory record of version 1"),
        (b"{}", "not a trajectory record of version 1"),
        (b'{"v": 2}', "not a trajectory record of version 1"),
    ],
)
def test_line_that_is_no_record_is_named(line: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "step.jsonl"
    write_records(path, [record(EXAMPLE)])
    path.write_bytes(path.read_bytes() + line + b"\n")
    records = read_records(path)
    assert next(records)["id"] == "s2/t/3"
    with pytest.raises(RecordError, match=rf"step\.jsonl:2: {reason}"):
        next(records)


def test_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "step.jsonl"

    def torn() -> Any:
        yield record(EXAMPLE)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_records(path, torn())
    assert list(path.parent.iterdir()) == []
    write_records(path, [record(EXAMPLE)] * 2)
    before = path.read_bytes()
    with pytest.raises(OSError, match="disk full"):
        write_records(path, torn())
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]
    with path.open("rb") as reader:  # whoever reads the old file goes on reading it
        write_records(path, [])
        assert reader.read() == before
    assert path.read_bytes() == b""


@pytest.mark.parametrize("reward", [math.inf, -math.inf, math.nan])
def test_a_reward_is_finite(reward: float) -> None:
    with pytest.raises(ValueError, match="must be a finite number"):
        Scored(reward=reward, method="m")


@pytest.mark.parametrize(("reward", "is_correct"), [(0.5, True), (-1.0, False), (1.0, False), (2.0, True)])
def test_reward_and_verdict_come_back(reward: float, is_correct: bool) -> None:
    outcome = Scored(reward=reward, method="m", is_correct=is_correct)
    told = json.loads(json.dumps(encode_outcome(outcome)))
    assert told == {"reward": reward, "method": "m", "is_correct": is_correct}
    assert decode_outcome(told) == outcome


@pytest.mark.parametrize(("reward", "is_correct"), [(1.0, True), (0.0, False)])
def test_a_record_of_before_the_verdict_was_stored_is_read(reward: float, is_correct: bool) -> None:
    outcome = decode_outcome({"reward": reward, "method": "exact"})
    assert isinstance(outcome, Scored) and outcome.is_correct is is_correct
