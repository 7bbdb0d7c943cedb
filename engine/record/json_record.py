"""The trajectory record as one JSON object, version 1: the form of readers and exports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rocstar.engine.plain_json import from_plain, to_plain
from rocstar.engine.types import (
    Failed,
    FinishReason,
    Fork,
    Given,
    Origin,
    Outcome,
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
    TurnForm,
    TurnTimes,
    VersionSpan,
)

VERSION = 1


class RecordError(Exception):
    """A record file that cannot be read; the message names the file and the place in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The algorithm's decision on a trajectory. `bucket` is its one bucket in the ledger."""

    bucket: str
    penalty_error: float | None
    penalty_format: float | None
    advantage: float | Sequence[float] | None
    """The advantage of every loss token, or one number for each."""


def to_record(
    trajectory: Trajectory, verdict: Verdict, *, stage: str, num_answers: int, decode: Callable[[Sequence[int]], str]
) -> dict[str, Any]:
    """A JSON-ready record; floats keep every bit, so that replay recomputes the same loss."""
    texts = [decode(trajectory.ids[s.start : s.end].tolist()) for s in trajectory.segments]
    return record_of(trajectory, verdict, stage=stage, num_answers=num_answers, texts=texts)


def record_of(
    trajectory: Trajectory, verdict: Verdict, *, stage: str, num_answers: int, texts: Sequence[str]
) -> dict[str, Any]:
    """As `to_record`, with the text of each segment."""
    t, advantage = trajectory, verdict.advantage
    return {
        "v": VERSION,
        "id": str(t.key),
        "step": t.key.step,
        "stage": stage,
        "task": encode_task(t.task),
        "sibling": t.key.sibling,
        "policy_version": max((span.version for span in t.version_spans), default=-1),
        "ids": t.ids.tolist(),
        "segments": [
            {"start": s.start, "end": s.end, "origin": s.origin.value, "text": text}
            for s, text in zip(t.segments, texts, strict=True)
        ],
        # NaN is no JSON: an engine without log-probs leaves null, which no training takes.
        "logprobs": [p if p == p else None for p in t.logprobs.tolist()],
        "version_spans": [[s.start, s.end, s.version] for s in t.version_spans],
        "turns": [encode_turn(turn) for turn in t.turns],
        "finish_reason": t.finish_reason.value,
        **encode_judgement(t.outcome, verdict),
        "advantage": advantage if isinstance(advantage, float | int | None) else list(advantage),
        "seed": [t.key.seed, t.key.step, t.key.sibling, *([t.key.branch] if t.key.branch else [])],
        "num_answers": num_answers,
        **encode_rest(t),
    }


def encode_rest(t: Trajectory) -> dict[str, Any]:
    """Return the fields of a trajectory that few records have."""
    return {
        **({} if t.times is None else {"times": encode_times(t.times)}),
        **({} if t.starts == (0,) else {"starts": list(t.starts)}),
        **({} if t.given is None else {"given": asdict(t.given)}),
        **({} if t.fork is None else {"fork": asdict(t.fork)}),
    }


def decode_rest(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return these fields of a record, as arguments of `Trajectory`."""
    given, fork = record.get("given"), record.get("fork")
    return {
        "times": decode_times(record.get("times")),
        "starts": tuple(record.get("starts", (0,))),
        "given": None if given is None else Given(**given),
        "fork": None if fork is None else Fork(**fork),
    }


def encode_task(task: Task) -> dict[str, Any]:
    """A task as JSON; `meta` is left out where it has a value that is not plain."""
    told: dict[str, Any] = {"id": task.id, "source": task.source, "question": task.question, "answer": task.answer}
    if task.context:
        told["context"] = [to_plain(dict(message)) for message in task.context]
    try:
        return told | {"meta": to_plain(dict(task.meta))} if task.meta else told
    except TypeError:
        return told


def encode_turn(turn: Turn) -> dict[str, Any]:
    """A turn as JSON, each call with its result. Where no call was executed there are no results at all."""
    calls = []
    for k, call in enumerate(turn.calls):
        result = turn.results[k] if turn.results else None
        calls.append(
            {
                "name": call.name,
                "arguments": None if call.arguments is None else dict(call.arguments),
                "malformed": call.malformed,
                "status": result.status if result else "not_executed",
                "is_error": result.is_error if result else False,
                "result": result.text if result else "",
                **({"restarted": True} if result and result.restarted else {}),
                **({"replayed": True} if result and result.replayed else {}),
            }
        )
    return {
        "start": turn.start,
        "end": turn.end,
        "text": turn.text,
        "finish": "stop" if turn.stopped else "length",
        "calls": calls,
        **({} if turn.form == TurnForm() else {"form": asdict(turn.form)}),
    }


def encode_judgement(outcome: Outcome, verdict: Verdict) -> dict[str, Any]:
    """Return the outcome, the penalties and the decision as fields of a record."""
    penalty = None
    if verdict.penalty_error is not None:
        penalty = {"error": verdict.penalty_error, "format": verdict.penalty_format}
    decision = {"kept": verdict.bucket == "kept", "reason": verdict.bucket}
    return {"outcome": encode_outcome(outcome), "penalty": penalty, "decision": decision}


def encode_outcome(outcome: Outcome) -> dict[str, Any]:
    """An outcome as JSON."""
    if isinstance(outcome, Scored):
        return {"reward": outcome.reward, "method": outcome.method, "is_correct": outcome.is_correct}
    failed = {"kind": outcome.kind, "retryable": outcome.retryable, "detail": outcome.detail}
    return {"failed": failed}


def decode_outcome(told: Mapping[str, Any]) -> Outcome:
    """Return the outcome; without `is_correct` in the record, a reward of 1 is correct."""
    return Failed(**told["failed"]) if "failed" in told else Scored(**told)


def from_record(record: Mapping[str, Any]) -> Trajectory:
    """The trajectory of a record. ValueError for another version.

    The verdict stays in the record. A task's `meta` comes back empty where it had a value that is not plain.
    """
    if record.get("v") != VERSION:
        raise ValueError(f"record version {record.get('v')!r}; this reads version {VERSION}")
    seed, step, sibling, *branch = record["seed"]
    task = decode_task(record["task"])
    return Trajectory(
        key=TrajectoryKey(seed=seed, step=step, task_id=task.id, sibling=sibling, branch="".join(branch)),
        task=task,
        ids=record["ids"],
        logprobs=record["logprobs"],
        segments=tuple(
            Segment(start=s["start"], end=s["end"], origin=Origin(s["origin"])) for s in record["segments"]
        ),
        version_spans=tuple(VersionSpan(start=a, end=b, version=v) for a, b, v in record["version_spans"]),
        turns=tuple(decode_turn(turn) for turn in record["turns"]),
        finish_reason=FinishReason(record["finish_reason"]),
        outcome=decode_outcome(record["outcome"]),
        **decode_rest(record),
    )


def check_branches(trajectories: Sequence[Trajectory]) -> None:
    """Raise ValueError if a branch among the trajectories of a group does not begin as its parent does."""
    known = {(t.key.sibling, t.key.branch): t for t in trajectories}
    for t in trajectories:
        if (fork := t.fork) is None:
            if t.key.branch:
                raise ValueError(f"{t.key} does not say where it leaves its parent")
            continue
        parent = known.get((t.key.sibling, fork.parent))
        if parent is None or not t.key.branch.startswith(f"{fork.parent}/" if fork.parent else f"{fork.turns}."):
            raise ValueError(f"{t.key} has no parent here: it names {fork.parent!r}")
        if not (0 < fork.start <= len(t.ids) and np.array_equal(t.ids[: fork.start], parent.ids[: fork.start])):
            raise ValueError(f"{t.key} and its parent differ before token {fork.start}")


def decode_task(told: Mapping[str, Any]) -> Task:
    """The task of a record; one from before there was context has none."""
    more = {
        "meta": from_plain(told.get("meta", {})),
        "context": tuple(from_plain(message) for message in told.get("context", ())),
    }
    return Task(**{**told, **more})


def decode_turn(turn: Mapping[str, Any]) -> Turn:
    """Return the turn of a record."""
    calls = tuple(ToolCall(name=c["name"], arguments=c["arguments"], malformed=c["malformed"]) for c in turn["calls"])
    results = tuple(
        ToolResult(
            status=c["status"],
            is_error=c["is_error"],
            text=c["result"],
            restarted=c.get("restarted", False),
            replayed=c.get("replayed", False),
        )
        for c in turn["calls"]
        if c["status"] != "not_executed"
    )
    return Turn(
        start=turn["start"],
        end=turn["end"],
        text=turn["text"],
        stopped=turn["finish"] == "stop",
        calls=calls,
        results=results,
        form=TurnForm(**turn.get("form", {})),
    )


PLACES = 4


def encode_times(times: TrajectoryTimes) -> dict[str, Any]:
    """Return the times as JSON: spans as pairs of seconds, to a tenth of a millisecond.

    {"began": 1700000000.123, "ended_s": 9.5, "granted_s": 0.1, "judged": [9.0, 9.5],
     "turns": [[0.0, 4.2, [[4.2, 9.0]]], ...]}          a turn: from, to, and the same of each result
    """
    return {
        "began": round(times.began, PLACES),
        "ended_s": round(times.ended_s, PLACES),
        "granted_s": None if times.granted_s is None else round(times.granted_s, PLACES),
        "judged": _pair(times.judged),
        "turns": [[*_numbers(turn.written), [_pair(call) for call in turn.calls]] for turn in times.turns],
    }


def decode_times(told: Mapping[str, Any] | None) -> TrajectoryTimes | None:
    """Return the times of a record; None if it has none."""
    if told is None:
        return None
    return TrajectoryTimes(
        began=told["began"],
        ended_s=told["ended_s"],
        granted_s=told["granted_s"],
        judged=_span(told["judged"]),
        turns=tuple(
            TurnTimes(written=Span(start, end), calls=tuple(_span(call) for call in calls))
            for start, end, calls in told["turns"]
        ),
    )


def _numbers(span: Span) -> list[float]:
    return [round(span.start_s, PLACES), round(span.end_s, PLACES)]


def _pair(span: Span | None) -> list[float] | None:
    return None if span is None else _numbers(span)


def _span(pair: Any) -> Span | None:
    return None if pair is None else Span(*pair)
