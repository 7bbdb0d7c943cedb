"""Orders as JSON, groups as frames, and back without loss.

    order:  {"v", "task": [...], "step", "seed", "first", "size", "limits": {...}, "temperature", "timeout_s"}
    group:  a frame (engine/record/columns.py) for each sibling, one behind the other

A frame names its sibling, which must match the order; its task is the order's. An order is ASCII only: a text
may contain half of a surrogate pair, which UTF-8 cannot encode.
"""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

import msgspec

from rocstar.engine.nodes.node import GroupOrder
from rocstar.engine.plain_json import from_plain, to_plain
from rocstar.engine.record.columns import HEAD, FrameError, decode_frame, encode_frame, frame_size
from rocstar.engine.rollout.rollout import RolloutLimits
from rocstar.engine.types import Group, Task

P = ParamSpec("P")
T = TypeVar("T")
VERSION = 5
SMALL_BYTES = 1 << 16
_BESIDE = ThreadPoolExecutor(1, thread_name_prefix="groups")
"""One thread: eight of them keep the interpreter's lock from the event loop for a third of a second."""


class _OrderBody(msgspec.Struct):
    task: tuple[str, str, str, str, Any, list[Any]]
    step: int
    seed: int
    first: int
    size: int
    limits: RolloutLimits
    temperature: float
    timeout_s: float


_SAME = ("step", "seed", "first", "size", "limits", "temperature")
"""Fields of the body that are the order's."""


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


def encode_order(order: GroupOrder, *, timeout_s: float) -> bytes:
    """The order as JSON.

    Args:
        order: the siblings to roll out.
        timeout_s: remaining seconds.

    Raises:
        NodeWireError: the task's `meta` holds a value that JSON cannot carry.
    """
    try:
        task = _plain_task(order.task)
    except TypeError as error:
        raise NodeWireError(f"task {order.task.id!r} cannot travel: {error}") from None
    body = {"v": VERSION, "task": task, **{name: getattr(order, name) for name in _SAME}, "timeout_s": timeout_s}
    return json.dumps(msgspec.to_builtins(body), separators=(",", ":")).encode("ascii")


def decode_order(body: bytes) -> tuple[GroupOrder, float]:
    """The order and its timeout in seconds."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:  # ValueError: not JSON, or not even text
        raise NodeWireError(f"not JSON: {error}") from None
    if not isinstance(fields, dict) or fields.get("v") != VERSION:
        raise NodeWireError(f"not of version {VERSION}")
    try:
        given = msgspec.convert(fields, _OrderBody)
        *names, meta, context = given.task
        task_id, source, question, answer = names
        messages = tuple(_object(message) for message in context)
        order = GroupOrder(
            task=Task(
                id=task_id, source=source, question=question, answer=answer, meta=_object(meta), context=messages
            ),
            **{name: getattr(given, name) for name in _SAME},
        )
    except (msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
        raise NodeWireError(f"no order: {type(error).__name__}: {error}") from None
    if order.size < 1 or order.first < 0 or not given.timeout_s > 0 or not order.temperature >= 0:
        raise NodeWireError(
            f"no order: {order.size} from {order.first}, {given.timeout_s} s, temperature {order.temperature}"
        )
    return order, given.timeout_s


def encode_group(group: Group) -> bytes:
    """The siblings as frames."""
    return b"".join(encode_frame(t) for t in group.trajectories)


def decode_group(body: bytes, order: GroupOrder) -> Group:
    """Return the group of an order. Raise NodeWireError if the bytes are not a group, or one of another
    order."""
    try:
        frames, at = [], 0
        while at < len(body):
            size = frame_size(body[at : at + HEAD.size])
            frames.append(body[at : at + size])
            at += size
        trajectories = tuple(decode_frame(frame, order.task).trajectory for frame in frames)
    except FrameError as error:
        raise NodeWireError(f"no group: {error}") from None
    siblings = [t.key.sibling for t in trajectories]
    if siblings != list(range(order.first, order.first + order.size)):
        raise NodeWireError(f"{order.key}: siblings {siblings}, ordered were {order.size} from {order.first}")
    if any((t.key.seed, t.key.step) != (order.seed, order.step) for t in trajectories):
        raise NodeWireError(f"{order.key}: of another seed or step")
    if any(len(t.ids) != len(t.logprobs) for t in trajectories):
        raise NodeWireError(f"{order.key}: not one log-prob per token")
    return Group(task=order.task, trajectories=trajectories)


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run one of these conversions beside the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_BESIDE, partial(work, *args, **kwargs))


def _object(plain: Any) -> dict[str, Any]:
    value = from_plain(plain)
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no object")
    return value
