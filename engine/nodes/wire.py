"""Orders and groups as JSON and back, without loss.

    order:  {"v", "task": [...], "step", "seed", "first", "size", "limits": {...}, "temperature", "timeout_s"}
    group:  {"v", "trajectories": [{"ids", "logprobs", "has_logprob", "segments", "spans", "turns", ...}]}

Numbers that come by the thousand travel as base64 of little-endian arrays (int32 ids, float64 log-probs,
one bit per token that has one): every bit is kept. A group says nothing of its task, step and seed, which are
the order's; only its siblings' numbers come back, and they must be those that were ordered.
Turns and outcomes are those of the trajectory record (record.py).
ASCII only: a policy may write half of a surrogate pair, which UTF-8 cannot carry.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from rocstar.engine.nodes.node import GroupOrder
from rocstar.engine.plain_json import from_plain, to_plain
from rocstar.engine.record import decode_outcome, decode_turn, encode_outcome, encode_turn
from rocstar.engine.rollout.rollout import RolloutLimits
from rocstar.engine.types import (
    FinishReason,
    Group,
    Origin,
    Segment,
    Task,
    Trajectory,
    TrajectoryKey,
    VersionSpan,
)

VERSION = 4


class NodeWireError(ValueError):
    """Bytes that are no order or no group of that order; or a task that cannot travel."""


def can_travel(task: Task) -> bool:
    """Whether `encode_order` can say all of it."""
    try:
        _plain_task(task)
    except TypeError:
        return False
    return True


def _plain_task(task: Task) -> list[Any]:
    context = [to_plain(dict(message)) for message in task.context]
    return [task.id, task.source, task.question, task.answer, to_plain(dict(task.meta)), context]


def _task_of(told: Any) -> Task:
    *names, meta, context = told
    task_id, source, question, answer = (_of(name, str) for name in names)
    return Task(
        id=task_id,
        source=source,
        question=question,
        answer=answer,
        meta=_of(from_plain(meta), dict),
        context=tuple(_of(from_plain(message), dict) for message in _of(context, list)),
    )


def encode_order(order: GroupOrder, *, timeout_s: float) -> bytes:
    """The order as JSON.

    Args:
        order: what is ordered.
        timeout_s: what is left for it.

    Raises:
        NodeWireError: the task's `meta` holds a value that JSON cannot carry.
    """
    try:
        task = _plain_task(order.task)
    except TypeError as error:
        raise NodeWireError(f"task {order.task.id!r} cannot travel: {error}") from None
    return _dump({
        "v": VERSION,
        "task": task,
        "step": order.step,
        "seed": order.seed,
        "first": order.first,
        "size": order.size,
        "limits": dataclasses.asdict(order.limits),
        "temperature": order.temperature,
        "timeout_s": timeout_s,
    })  # fmt: skip


def decode_order(body: bytes) -> tuple[GroupOrder, float]:
    """The order and its timeout in seconds."""
    told = _load(body)
    try:
        limits = told["limits"]
        order = GroupOrder(
            task=_task_of(told["task"]),
            step=_of(told["step"], int),
            seed=_of(told["seed"], int),
            first=_of(told["first"], int),
            size=_of(told["size"], int),
            limits=RolloutLimits(
                max_response_tokens=_of(limits["max_response_tokens"], int),
                max_turns=_of(limits["max_turns"], int),
                max_tool_tokens=_of(limits["max_tool_tokens"], int),
                timeout_s=_of(limits["timeout_s"], float),
            ),
            temperature=_of(told["temperature"], float),
        )
        timeout_s = _of(told["timeout_s"], float)
    except (KeyError, TypeError, ValueError) as error:
        raise NodeWireError(f"no order: {type(error).__name__}: {error}") from None
    if order.size < 1 or order.first < 0 or not timeout_s > 0 or not order.temperature >= 0:
        raise NodeWireError(
            f"no order: {order.size} from {order.first}, {timeout_s} s, temperature {order.temperature}"
        )
    return order, timeout_s


def encode_group(group: Group) -> bytes:
    return _dump({"v": VERSION, "trajectories": [_trajectory(t) for t in group.trajectories]})


def decode_group(body: bytes, order: GroupOrder) -> Group:
    told = _load(body)
    try:
        trajectories = tuple(_trajectory_from(each, order) for each in told["trajectories"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise NodeWireError(f"no group: {type(error).__name__}: {error}") from None
    siblings = [t.key.sibling for t in trajectories]
    if siblings != list(range(order.first, order.first + order.size)):
        raise NodeWireError(f"{order.key}: siblings {siblings}, ordered were {order.size} from {order.first}")
    return Group(task=order.task, trajectories=trajectories)


def _trajectory(t: Trajectory) -> dict[str, Any]:
    known = [p for p in t.logprobs if p is not None]
    return {
        "sibling": t.key.sibling,
        "ids": _pack(np.array(t.ids, dtype="<i4")),
        "logprobs": _pack(np.array(known, dtype="<f8")),
        "has_logprob": _pack(np.packbits(np.array([p is not None for p in t.logprobs], dtype=bool))),
        "num_logprobs": len(t.logprobs),
        "segments": [[s.start, s.end, s.origin.value] for s in t.segments],
        "spans": [[s.start, s.end, s.version] for s in t.version_spans],
        "turns": [encode_turn(turn) for turn in t.turns],
        "finish_reason": t.finish_reason.value,
        "outcome": encode_outcome(t.outcome),
    }


def _trajectory_from(told: Mapping[str, Any], order: GroupOrder) -> Trajectory:
    num = _of(told["num_logprobs"], int)
    has_T = np.unpackbits(_unpack(told["has_logprob"], "u1"), count=num).astype(bool)
    known = iter(_unpack(told["logprobs"], "<f8").tolist())
    logprobs = tuple(next(known) if has else None for has in has_T.tolist())
    ids = tuple(_unpack(told["ids"], "<i4").tolist())
    if not len(ids) == len(logprobs) == num or next(known, None) is not None:
        raise ValueError(f"{len(ids)} tokens, {len(logprobs)} log-probs")
    return Trajectory(
        key=TrajectoryKey(
            seed=order.seed, step=order.step, task_id=order.task.id, sibling=_of(told["sibling"], int)
        ),
        task=order.task,
        ids=ids,
        logprobs=logprobs,
        segments=tuple(Segment(start=a, end=b, origin=Origin(origin)) for a, b, origin in told["segments"]),
        version_spans=tuple(VersionSpan(start=a, end=b, version=v) for a, b, v in told["spans"]),
        turns=tuple(decode_turn(turn) for turn in told["turns"]),
        finish_reason=FinishReason(told["finish_reason"]),
        outcome=decode_outcome(told["outcome"]),
    )


def _pack(array: Any) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")


def _unpack(text: Any, dtype: str) -> Any:
    return np.frombuffer(base64.b64decode(_of(text, str), validate=True), dtype=dtype)


def _of(value: Any, kind: type) -> Any:
    """The value if it is of the kind; a whole number is a float too, and True is no number."""
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _load(body: bytes) -> dict[str, Any]:
    try:
        told = json.loads(body)
    except (ValueError, RecursionError) as error:  # ValueError: not JSON, or not even text
        raise NodeWireError(f"not JSON: {error}") from None
    if not isinstance(told, dict) or told.get("v") != VERSION:
        raise NodeWireError(f"not of version {VERSION}")
    return told
