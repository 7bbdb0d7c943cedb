"""How far long work is: what is done of all, since when, and what is slowest.

    with working("demonstrations", unit="conversations", total=500) as work:
        ...
        work.done += 1

The board is found through a context variable, which tasks inherit, so nobody hands it around; without a board
the counts are left, and nobody reads them. Who works only counts, at most once per turn of a trajectory; who
shows it (status.py) looks when it likes, from its own thread, and pays for the looking.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from rocstar.engine.types import Group

Given = TypeVar("Given")
Made = TypeVar("Made")

_BOARD: ContextVar[ProgressBoard | None] = ContextVar("rocstar_progress", default=None)
_ATTEMPTS: ContextVar[Attempts | None] = ContextVar("rocstar_attempts", default=None)

COMPARED = 1000
KNOWN = 0.02
"""Share of all that must be done before anybody says how long the rest will take."""
FIRST_TOLD_S = (60.0, 300.0)
TOLD_EVERY_S = 900.0
"""Ages at which work is told where nothing shows it all the time; after the first ones, every so often."""


def rate(done: int, seconds: float) -> float | None:
    """Per second; None while nothing is done."""
    return done / seconds if done > 0 and seconds > 0 else None


def left_s(done: int, total: int, seconds: float) -> float | None:
    """Seconds until all is done if it goes on as so far; None if nobody can know, or nothing is left."""
    speed = rate(done, seconds)
    if speed is None or done >= total or done < KNOWN * total:
        return None
    return (total - done) / speed


def next_told_s(age_s: float) -> float:
    """The first age after `age_s` at which work is told."""
    for first in FIRST_TOLD_S:
        if age_s < first:
            return first
    return TOLD_EVERY_S * (age_s // TOLD_EVERY_S + 1)


@dataclass(slots=True, kw_only=True, eq=False)
class RunningAttempt:
    """A trajectory in flight. `moved` is the clock at its begin or at the end of its last turn."""

    name: str
    since: float
    moved: float
    turns: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Attempts:
    """The trajectories of one piece of work: in flight here, and ended anywhere."""

    total: int = 0
    """0 = nobody knows, for they go on from step to step."""
    ended: int = 0
    tokens: int = 0
    """Written by the policy, in turns that ended."""
    clock: Callable[[], float] = time.monotonic
    running: dict[str, RunningAttempt] = field(default_factory=dict)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Trajectories of this task, and of all that it starts inside the block, count here."""
        token = _ATTEMPTS.set(self)
        try:
            yield
        finally:
            _ATTEMPTS.reset(token)

    def counting(self, make: Callable[[Given], Awaitable[Made]]) -> Callable[[Given], Awaitable[Made]]:
        """`make`, with its trajectories counted here wherever its task was started."""

        async def counted(given: Given) -> Made:
            with self.installed():
                return await make(given)

        return counted

    def slowest(self) -> RunningAttempt | None:
        """The oldest in flight; of those that began together, the one whose last turn ended first. Only the
        first `COMPARED` are looked at."""
        oldest = list(self.running.values())[:COMPARED]  # a copy at once: others change it meanwhile
        return min(oldest, key=lambda attempt: (round(attempt.since), attempt.moved), default=None)


@dataclass(slots=True, kw_only=True, eq=False)
class Work:
    """One thing that takes long, from its beginning to its end on the board."""

    what: str
    unit: str = ""
    total: int = 0
    """0 = it is one thing, or nobody knows how many."""
    since: float = 0.0
    done: int = 0
    count: Callable[[], tuple[int, int]] | None = None
    """Where somebody else counts: tells what is done of all, asked from any thread."""
    attempts: Attempts | None = None
    tokens_before: int = 0
    """Tokens of `attempts` when this work began."""

    def counts(self) -> tuple[int, int]:
        """What is done of all; 0 of 0 where nobody counts."""
        return (self.done, self.total) if self.count is None else self.count()

    def counting(self, make: Callable[[Given], Awaitable[Made]]) -> Callable[[Given], Awaitable[Made]]:
        """`make`, each end of which is one more done."""

        async def counted(given: Given) -> Made:
            made = await make(given)
            self.done += 1
            return made

        return counted


class ProgressBoard:
    """The work under way, the outermost first.

    Invariant: a Work is here exactly while its `with` block runs.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._works: dict[Work, None] = {}

    @property
    def works(self) -> list[Work]:
        """The works under way, in the order of their beginnings."""
        return list(self._works)

    @contextlib.contextmanager
    def installed(self) -> Iterator[ProgressBoard]:
        """`working` writes here, in this task and all that it starts inside the block."""
        token = _BOARD.set(self)
        try:
            yield self
        finally:
            _BOARD.reset(token)

    @contextlib.contextmanager
    def showing(self, work: Work) -> Iterator[None]:
        """`work` begins now and ends with the block."""
        work.since = self.clock()
        if work.attempts is not None:
            work.attempts.clock, work.tokens_before = self.clock, work.attempts.tokens
        self._works[work] = None
        try:
            yield
        finally:
            del self._works[work]


@contextlib.contextmanager
def working(
    what: str,
    *,
    unit: str = "",
    total: int = 0,
    attempts: Attempts | None = None,
    count: Callable[[], tuple[int, int]] | None = None,
) -> Iterator[Work]:
    """Show the block as work on the board of this context, if there is one. `what` says it in a few words;
    attempts: of the trajectories that it rolls out, or waits for. count: if somebody else counts what is done
    of all."""
    board = _BOARD.get()
    work = Work(what=what, unit=unit, total=total, attempts=attempts, count=count)
    with contextlib.ExitStack() as stack:
        if board is not None:
            stack.enter_context(board.showing(work))
            if attempts is not None:
                stack.enter_context(attempts.installed())
        yield work


@contextlib.contextmanager
def attempting(name: str) -> Iterator[None]:
    """The block rolls out the trajectory `name`; when it is left, however that comes, one more has ended."""
    attempts = _ATTEMPTS.get()
    if attempts is None:
        yield
        return
    now = attempts.clock()
    attempts.running[name] = RunningAttempt(name=name, since=now, moved=now)
    try:
        yield
    finally:
        del attempts.running[name]
        attempts.ended += 1


def turn_ended(name: str, tokens: int) -> None:
    """The trajectory `name`, in flight here, has written a turn of so many tokens."""
    attempts = _ATTEMPTS.get()
    if attempts is None:
        return
    attempts.tokens += tokens
    if (attempt := attempts.running.get(name)) is not None:
        attempt.turns, attempt.moved = attempt.turns + 1, attempts.clock()


def rolled_out_elsewhere(group: Group) -> None:
    """Count what another process rolled out for this context."""
    attempts = _ATTEMPTS.get()
    if attempts is not None:
        attempts.ended += len(group.trajectories)
        attempts.tokens += sum(t.num_policy_tokens for t in group.trajectories)
