"""Progress of long work: items done, start time, and the slowest trajectory.

    with working("demonstrations", unit="conversations", total=500) as work:
        ...
        work.done += 1

The board is a context variable, which tasks inherit; without a board the counts have no reader. The work
itself only counts, at most once per turn of a trajectory; status.py reads the counts from its own thread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

from rocstar.engine.types import Group
from rocstar.engine.waits import WaitBoard, bound

_BOARD: ContextVar[ProgressBoard | None] = ContextVar("rocstar_progress", default=None)
_ATTEMPTS: ContextVar[Attempts | None] = ContextVar("rocstar_attempts", default=None)

COMPARED = 1000
KNOWN = 0.02
"""Share of the total that must be done before the remaining time is estimated."""
FIRST_REPORTS_S = (60.0, 300.0)
REPORT_EVERY_S = 900.0
"""Ages in seconds at which plain output reports work: the first two, then every REPORT_EVERY_S."""


def rate(done: int, seconds: float) -> float | None:
    """Per second; None while nothing is done."""
    return done / seconds if done > 0 and seconds > 0 else None


def left_s(done: int, total: int, seconds: float) -> float | None:
    """Return the remaining seconds at the present rate; None if unknown or if nothing is left."""
    speed = rate(done, seconds)
    if speed is None or done >= total or done < KNOWN * total:
        return None
    return (total - done) / speed


def next_report_s(age_s: float) -> float:
    """Return the first age after `age_s` at which work is reported."""
    for first in FIRST_REPORTS_S:
        if age_s < first:
            return first
    return REPORT_EVERY_S * (age_s // REPORT_EVERY_S + 1)


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
    """0 if unknown, because they continue over steps."""
    ended: int = 0
    tokens: int = 0
    """Written by the policy, in turns that ended."""
    clock: Callable[[], float] = time.monotonic
    running: dict[str, RunningAttempt] = field(default_factory=dict)

    def installed(self) -> contextlib.AbstractContextManager[Attempts]:
        """Trajectories of this task, and of all that it starts inside the block, count here."""
        return bound(_ATTEMPTS, self)

    def slowest(self) -> RunningAttempt | None:
        """Return the oldest in flight; of those that began together, the one whose last turn ended first.
        Only the first `COMPARED` are compared."""
        oldest = list(self.running.values())[:COMPARED]  # a copy at once: others change it meanwhile
        return min(oldest, key=lambda attempt: (round(attempt.since), attempt.moved), default=None)


@dataclass(slots=True, kw_only=True, eq=False)
class Work:
    """One thing that takes long, from its beginning to its end on the board."""

    what: str
    unit: str = ""
    total: int = 0
    """0 for a single item, or if unknown."""
    since: float = 0.0
    done: int = 0
    count: Callable[[], tuple[int, int]] | None = None
    """Returns (done, total) if another component counts; called from any thread."""
    attempts: Attempts | None = None
    tokens_before: int = 0
    """Tokens of `attempts` when this work began."""

    def counts(self) -> tuple[int, int]:
        """Return (done, total); (0, 0) if unknown."""
        return (self.done, self.total) if self.count is None else self.count()


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

    def installed(self) -> contextlib.AbstractContextManager[ProgressBoard]:
        """`working` writes here, in this task and all that it starts inside the block."""
        return bound(_BOARD, self)

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
    """Show the block as work on the board of this context, if there is one.

    Args:
        what: the work in a few words.
        unit: of its items.
        total: number of items; 0 if unknown.
        attempts: the trajectories that it rolls out, or waits for.
        count: returns (done, total) if another component counts.
    """
    board = _BOARD.get()
    work = Work(what=what, unit=unit, total=total, attempts=attempts, count=count)
    with contextlib.ExitStack() as stack:
        if board is not None:
            stack.enter_context(board.showing(work))
            if attempts is not None:
                stack.enter_context(attempts.installed())
        yield work


@contextlib.contextmanager
def attempting(name: str, *, is_branch: bool = False) -> Iterator[None]:
    """Count the trajectory `name` as running in the block, and as ended after it; a branch is one more of all."""
    attempts = _ATTEMPTS.get()
    if attempts is None:
        yield
        return
    attempts.total += bool(attempts.total and is_branch)
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


def count_remote_group(group: Group) -> None:
    """Count the trajectories that another process rolled out for this context."""
    attempts = _ATTEMPTS.get()
    if attempts is not None:
        attempts.ended += len(group.trajectories)
        attempts.tokens += sum(t.num_policy_tokens for t in group.trajectories)


LONG_WAITS = ("publish", "start")
"""Kinds of waits that are shown as work: no Work covers them."""


def duration(seconds: float) -> str:
    """`42s`, `3m07s` or `2h05m`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def format_bytes(num_bytes: float) -> str:
    """`0.86 MB`, `6.4 MB`, `29.5 GB` or `1,200 GB`."""
    scaled, unit = (num_bytes / 1e9, "GB") if num_bytes >= 999.5e6 else (num_bytes / 1e6, "MB")
    return f"{round(scaled, 2 if scaled < 10 else 1 if scaled < 100 else None):,g} {unit}"


def per_second(speed: float, unit: str = "") -> str:
    """`0.05/s`, `3.1/s`, `12/s`, `1.2k tokens/s`."""
    if speed >= 999.5:
        text = f"{speed / 1000:.1f}k" if speed < 99_950 else f"{speed / 1000:.0f}k"
    else:
        text = f"{speed:.0f}" if speed >= 9.95 else f"{speed:.2g}"
    return f"{text} {unit}/s" if unit else f"{text}/s"


def work_line(work: Work, now: float) -> str:
    """`evaluation: 28 of 100 tasks, 120 of 400 attempts (10/s, 1.2k tokens/s), 12s, about 28s left`."""
    age, attempts = now - work.since, work.attempts
    parts, speeds = [], []
    basis, total = work.counts()
    if total:
        parts.append(f"{basis:,} of {total:,} {work.unit}")
    if attempts is not None:
        in_flight = f"{len(attempts.running):,}"
        if not attempts.total:
            parts.append(f"{in_flight} attempts in flight")
        else:
            parts.append(f"{attempts.ended:,} of {attempts.total:,} attempts, {in_flight} in flight")
            basis, total = attempts.ended, attempts.total
    if (speed := rate(basis, age)) is not None and total:
        speeds.append(per_second(speed))
    if attempts is not None and (speed := rate(attempts.tokens - work.tokens_before, age)) is not None:
        speeds.append(per_second(speed, "tokens"))
    if speeds:
        parts[-1] += f" ({', '.join(speeds)})"
    parts.append(duration(age))
    if (left := left_s(basis, total, age)) is not None:
        parts.append(f"about {duration(left)} left")
    return f"{work.what}: " + ", ".join(parts)


def slowest_line(attempt: RunningAttempt, waits: WaitBoard, now: float) -> str:
    """`slowest: s4/17/3, turn 4, 2m10s, waiting for its tools (12s)`."""
    wait = next((wait for wait in reversed(waits.entries) if wait.who == attempt.name), None)
    is_writing = wait is None or wait.kind == "generate"
    turn = max(1, attempt.turns + is_writing)
    text = f"slowest: {attempt.name}, turn {turn}, {duration(now - attempt.since)}"
    if wait is None:
        return text
    age_s = waits.age_s(wait)
    return f"{text}, waiting for {wait.whom}" + (f" ({duration(age_s)})" if age_s >= 1 else "")
