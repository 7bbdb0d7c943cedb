"""What a policy says to the user, as against what it thinks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rocstar.engine.chat.toolcalls import THOUGHT, said
from rocstar.engine.types import Task, Turn


def spoken(turns: Sequence[Turn]) -> str:
    """What the last turn says, without the white space behind a thought."""
    text = said(turns[-1:])
    return text if turns and text == turns[-1].text else text.lstrip()


def nothing_said(task: Task) -> str:
    """A thought and no word: it follows no instruction and wins no game."""
    return f"{THOUGHT[0]}{task.question}{THOUGHT[1]}"
