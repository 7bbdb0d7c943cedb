"""The line that a person edits: history, several lines, paste, as prompt_toolkit gives them."""

from __future__ import annotations

from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent


class EditedLines:
    """Implements `Lines`. What was asked is remembered in a file, from one chat to the next."""

    def __init__(self, history: Path | None) -> None:
        """history: the file; None, or one that cannot be written: only while this process lasts."""
        self._session: PromptSession[str] = PromptSession(
            history=_history(history), key_bindings=_bindings(), enable_open_in_editor=True
        )

    async def next(self) -> str:
        """What was written. EOFError for Ctrl-D; KeyboardInterrupt for Ctrl-C."""
        return await self._session.prompt_async("you> ", handle_sigint=False)


def _history(path: Path | None) -> History:
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings
