"""The output of a chat: appended line by line, at any width, never redrawn."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from rocstar.engine.gateway.stream_parts import TextPart, ToolCallPart, ToolResultPart
from rocstar.engine.serve.terminal.client import StreamEvent
from rocstar.sandbox.http.printable import printable

MAX_RESULT_LINES = 12
"""The lines of a tool result that are printed; `/tools` prints all."""


class Screen:
    """Invariant: printed text is never changed, and each kind of text starts on a new line."""

    def __init__(self, console: Console, *, shows_all: bool = False) -> None:
        """shows_all: results in full."""
        self.console, self._shows_all = console, shows_all
        self._kind = ""
        self._at_line_begin = True

    def show(self, event: StreamEvent) -> None:
        """Show an event of an answer."""
        if isinstance(event, TextPart):
            self._begin(event.kind)
            if event.text:
                style = "dim italic" if event.kind == "reasoning_content" else ""
                self.console.print(Text(printable(event.text), style=style), end="", soft_wrap=True, highlight=False)
                self._at_line_begin = event.text.endswith("\n")
        elif isinstance(event, ToolCallPart):
            self._call(event.name, event.arguments)
        elif isinstance(event, ToolResultPart):
            self._result(event.text, event.status, is_error=event.is_error)

    def end(self, note: str = "") -> None:
        """The answer is over."""
        self._line()
        self._kind = ""
        if note:
            self.note(note)

    def note(self, text: str) -> None:
        """A line that is not the assistant's."""
        self._line()
        self.console.print(Text(printable(text), style="dim"), soft_wrap=True)

    def mark(self) -> None:
        """A dot for one of several things that are awaited."""
        self._begin("marks")
        self.console.print(Text(".", style="dim"), end="", soft_wrap=True)
        self._at_line_begin = False

    def _begin(self, kind: str) -> None:
        if kind != self._kind:
            self._line()
            if kind == "reasoning_content" and self._kind:
                self.console.print()
        self._kind = kind

    def _line(self) -> None:
        if not self._at_line_begin:
            self.console.print()
            self._at_line_begin = True

    def _call(self, name: str | None, arguments: Mapping[str, Any] | None) -> None:
        self._begin("call")
        self.console.print(
            Text(f"> {printable(name or 'a call that cannot be read')}", style="bold cyan"), soft_wrap=True
        )
        for field, value in (arguments or {}).items():
            if field == "code" and isinstance(value, str):
                # Without wrapped lines: copied code runs, and the terminal rewraps it at another width.
                syntax = Syntax("", "python", theme="ansi_light", background_color="default")
                code = syntax.highlight(printable(value).rstrip("\n"))
                code.rstrip()
                self.console.print(code, soft_wrap=True)
            elif value not in ("", None):
                self.console.print(Text(printable(f"{field}: {value}")), soft_wrap=True)

    def _result(self, text: str, status: str, *, is_error: bool) -> None:
        self._begin("result")
        lines = printable(text).rstrip("\n").split("\n")
        shown = lines if self._shows_all else lines[:MAX_RESULT_LINES]
        for line in shown:
            self.console.print(Text(f"| {line}", style="red" if is_error else "green"), soft_wrap=True)
        if len(shown) < len(lines):
            left = f"| ... {len(lines) - len(shown)} more lines: /tools"
            self.console.print(Text(left, style="dim"), soft_wrap=True)
        if is_error:
            self.console.print(Text(f"({printable(status)})", style="red"))
