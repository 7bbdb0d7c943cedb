"""Attempts of one turn, for the tests of built-in sets."""

from rocstar.engine.types import Attempt, Task, Turn


def attempt_at(task: Task, text: str, *, is_truncated: bool = False) -> Attempt:
    turn = Turn(start=0, end=1, text=text, stopped=not is_truncated)
    return Attempt(task=task, turns=(turn,), is_truncated=is_truncated)
