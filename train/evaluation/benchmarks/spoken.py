"""What a policy says to the user, as against what it thinks. Pure."""

from __future__ import annotations

from rocstar.engine.types import Task

_OPEN, _CLOSE = "<think>", "</think>"


def spoken(text: str) -> str:
    """Return what stands behind the last </think>; nothing if a thought was begun and not ended."""
    _, closed, after = text.rpartition(_CLOSE)
    if closed:
        return after.lstrip()
    return "" if text.lstrip().startswith(_OPEN) else text


def nothing_said(task: Task) -> str:
    """A thought and no word: it follows no instruction and wins no game."""
    return f"{_OPEN}{task.question}{_CLOSE}"
