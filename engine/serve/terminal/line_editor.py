"""The input line of a chat: history, several lines and paste, by prompt_toolkit."""

from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys


class LineEditor:
    """A `Lines` with a history file that is shared by all chats."""

    def __init__(self, history: Path | None) -> None:
        """history: the file; None, or one that cannot be written: only while this process lasts."""
        bindings = KeyBindings()

        @bindings.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        self._session: PromptSession[str] = PromptSession(
            history=_history(history), key_bindings=bindings, enable_open_in_editor=True
        )

    async def next(self) -> str:
        """Return the next input. EOFError for Ctrl-D; KeyboardInterrupt for Ctrl-C."""
        return await self._session.prompt_async("you> ", handle_sigint=False)

    def interrupted(self) -> bool:
        """Return True if Ctrl-C was pressed after the last line. The other keys are kept for the next one."""
        source = self._session.input
        keys = get_typeahead(source)  # keys that the prompt read together with Enter
        while more := source.read_keys():
            keys += more
        # A late cursor position report is not a key, and the cursor has moved since.
        store_typeahead(source, [k for k in keys if k.key not in (Keys.ControlC, Keys.CPRResponse)])
        return any(k.key == Keys.ControlC for k in keys)


def _history(path: Path | None) -> History:
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
