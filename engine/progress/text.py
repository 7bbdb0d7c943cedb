"""Progress as text: one line per piece of work, and one for its slowest trajectory. Pure."""

from __future__ import annotations

from rocstar.engine.progress.progress import Attempts, RunningAttempt, Work, left_s, rate
from rocstar.engine.waits import Wait, WaitBoard

LONG_WAITS = ("publish", "start")
"""Kinds of waits that are shown as work: no Work covers them."""


def duration(seconds: float) -> str:
    """`42s`, `3m07s` or `2h05m`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


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
        parts.append(_attempts_text(attempts))
        if attempts.total:
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


def _attempts_text(attempts: Attempts) -> str:
    in_flight = f"{len(attempts.running):,}"
    if not attempts.total:
        return f"{in_flight} attempts in flight"
    return f"{attempts.ended:,} of {attempts.total:,} attempts, {in_flight} in flight"


def slowest_line(attempt: RunningAttempt, waits: WaitBoard, now: float) -> str:
    """`slowest: s4/17/3, turn 4, 2m10s, waits for its tools since 12s`."""
    wait = next((wait for wait in reversed(waits.entries) if wait.who == attempt.name), None)
    is_writing = wait is None or wait.kind == "generate"
    turn = max(1, attempt.turns + is_writing)
    text = f"slowest: {attempt.name}, turn {turn}, {duration(now - attempt.since)}"
    return text if wait is None else text + f", waits for {wait.whom} since {duration(waits.age_s(wait))}"


def wait_line(wait: Wait, waits: WaitBoard) -> str:
    """`step 4 waits for the engine to take new weights, 40s`."""
    return f"{wait.who} waits for {wait.whom}, {duration(waits.age_s(wait))}"
