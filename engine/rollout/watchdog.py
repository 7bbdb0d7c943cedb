"""Detect a standstill: report all waits, then apply remedies.

    every `interval_s`: has the board changed?  yes -> all is well
                        no, for `stall_s`       -> report (waits, stacks of tasks and threads) -> next remedy
    remedies, mildest first: end the oldest wait | restart a replica | ... ; none left -> StalledError

A deadline ends one await; the watchdog covers awaits without a deadline, or with one that is too late. It
runs beside the work in the same TaskGroup: its StalledError cancels everything else, and the process exits.
"""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rocstar.engine.waits import Wait, WaitBoard

Remedy = Callable[["Stall"], Awaitable[str | None]]
"""Tries to end the standstill; returns its action in words, or None if it found none."""

MAX_STACKS = 40
"""Tasks whose stacks a report shows: those of a node with thousands of trajectories all look alike."""


class StalledError(Exception):
    """Nothing moved, and no remedy is left. Carries the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A moment without progress."""

    seconds: float
    waits: tuple[Wait, ...]
    """Oldest first."""
    report: str


async def watch(
    board: WaitBoard,
    *,
    stall_s: float,
    remedies: Sequence[Remedy],
    tell: Callable[[str], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Run until cancelled. Each stall uses the mildest remedy not yet tried; progress makes all fresh again.

    Raises:
        StalledError: a stall after the last remedy.
    """
    interval_s = stall_s / 4
    seen, since, tried = board.changes, board.clock(), 0
    while True:
        await sleep(interval_s)
        if board.changes != seen or not board.entries:
            seen, since, tried = board.changes, board.clock(), 0
            continue
        seconds = board.clock() - since
        if seconds < stall_s:
            continue
        stall = Stall(seconds=seconds, waits=tuple(board.entries), report=describe(board, seconds))
        tell(stall.report)
        done = None
        while done is None and tried < len(remedies):
            done = await remedies[tried](stall)
            tried += 1
        if done is None:
            raise StalledError(stall.report)
        tell(f"watchdog: {done}")
        # A change of the board by a remedy is not progress; only the next change counts.
        seen, since = board.changes, board.clock()


async def expire_oldest(stall: Stall) -> str | None:
    """End the oldest wait that may be ended, as its deadline would: its trajectory ends as Failed."""
    for wait in stall.waits:
        if wait.may_expire and wait.expire():
            return f"ended the wait of {wait.who} for {wait.whom}"
    return None


def describe(board: WaitBoard, seconds: float) -> str:
    """The waits, then the stacks of the tasks behind them and of every thread."""
    out = io.StringIO()
    print(f"nothing has moved for {seconds:.0f} s (wall clock {time.strftime('%H:%M:%S')})", file=out)
    print(board.table(), file=out)
    shown: set[int] = set()
    for wait in board.entries:
        if wait.task is None or id(wait.task) in shown:
            continue
        if len(shown) == MAX_STACKS:
            print(f"... stacks of the first {MAX_STACKS} tasks only", file=out)
            break
        shown.add(id(wait.task))
        print(f"\ntask {wait.task.get_name()}: {wait.who}", file=out)
        print("".join(_await_chain(wait.task)), end="", file=out)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        print(f"\nthread {names.get(ident, ident)}", file=out)
        print("".join(traceback.format_stack(frame, limit=-12)), end="", file=out)
    return out.getvalue()


def _await_chain(task: asyncio.Task[object]) -> list[str]:
    """Every frame from the task's coroutine down to what it awaits; Task.get_stack shows the first alone."""
    frames = traceback.StackSummary()
    awaited: object = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)
        frame = frame or getattr(awaited, "gi_frame", None)
        if frame is not None:
            code = frame.f_code
            frames.append(traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name))
        awaited = (
            getattr(awaited, "cr_await", None)
            or getattr(awaited, "ag_await", None)
            or getattr(awaited, "gi_yieldfrom", None)
        )
    return frames.format()
