"""A chat session: input lines, responses and commands.

    tty    prompt_toolkit ──line──> command | question ──> ChatClient.ask ──> Screen
    else   --prompt, or piped input ──> responses on standard output, with --json a line each

The person waits for a response, which Ctrl-C stops and keeps, or for a command, which it stops. The program
waits for the person without a timeout.
"""

import asyncio
import contextlib
import copy
import json
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rocstar.engine.gateway.stream_parts import TextPart
from rocstar.engine.serve.terminal.chat_history import ChatHistory, ReceivedAnswer, count_votes
from rocstar.engine.serve.terminal.client import ChatClient, ChoiceEnd, TerminalError
from rocstar.engine.serve.terminal.screen import Screen

HELP = """\
/n K         ask K times at once and vote; /n 1 streams again
/system TEXT set the system message; without TEXT, show it
/tools       the last answer's calls with their whole results
/undo        take back the last question and its answer
/save FILE   save the chat; /load FILE loads it
/good /bad   send feedback on the last answer to the server
/new         start a new chat
/quit        leave (so do Ctrl-D, and Ctrl-C twice)
Enter sends; Alt-Enter begins a new line; pasted lines are one message."""


class Lines(Protocol):
    """The input of a person."""

    async def next(self) -> str:
        """Return the next input. EOFError at the end; KeyboardInterrupt for Ctrl-C."""

    def interrupted(self) -> bool:
        """Return True if Ctrl-C was pressed after the last input; other keys are kept for the next one."""


@dataclass(slots=True)
class ChatSession:
    """A chat of a person with an endpoint.

    Invariants: the text of a stopped response is kept, and the next question follows it. Ctrl-C after a
        line stops that line's request, even if it is pressed immediately, and never the chat.
    """

    client: ChatClient
    screen: Screen
    history: ChatHistory = field(default_factory=ChatHistory)
    num_choices: int = 1
    _doing: asyncio.Future[None] | None = None
    _lines: Lines | None = None

    async def run(self, lines: Lines) -> None:
        """Run until the person leaves."""
        self._lines = lines
        with raw_mode():
            while (line := await self._next(lines)) != "/quit":
                if line.startswith("/"):
                    await self._command(line)
                elif line:
                    await self.ask(line)

    async def _next(self, lines: Lines) -> str:
        """The next line; `/quit` for every way to leave."""
        is_warned = False
        while True:
            try:
                return (await lines.next()).strip()
            except EOFError:
                return "/quit"
            except KeyboardInterrupt:
                if is_warned:
                    return "/quit"
                is_warned = True
                self.screen.note("Ctrl-C once more leaves")

    async def ask(self, question: str | None) -> ReceivedAnswer:
        """Ask and print the response as it arrives; Ctrl-C stops it. None: the policy continues."""
        answer = ReceivedAnswer()
        if not await self._until_stopped(self._receive_answer(question, answer)):
            self.screen.end("(stopped)")
        if (answer.parts or answer.end) and not self.history.add(question, answer, answer.best_choice()):
            self.screen.note("(not kept: this chat continues from tokens, and the last of them are unknown)")
        return answer

    def stop(self) -> None:
        """Stop the current response, whose text is kept, or the current command."""
        if self._doing is not None:
            self._doing.cancel()

    async def _until_stopped(self, work: Awaitable[None]) -> bool:
        """Return True if the work finished, False if `stop` or Ctrl-C ended it."""
        doing = self._doing = asyncio.ensure_future(work)
        try:
            with _on_interrupt(self.stop), no_echo():
                if self._lines is not None and self._lines.interrupted():
                    self.stop()
                await asyncio.wait([doing])
        finally:
            self._doing = None
            doing.cancel()  # its waiter was cancelled, so no caller reads it
        if doing.cancelled():
            return False
        doing.result()
        return True

    async def _receive_answer(self, question: str | None, answer: ReceivedAnswer) -> None:
        stream = self.client.ask(
            self.history.request_messages(question), num_choices=self.num_choices, prefix_ids=self.history.ids
        )
        try:
            async with contextlib.aclosing(stream):
                async for event in stream:
                    answer.receive(event)
                    if self.num_choices == 1:
                        self.screen.show(event)
                    elif isinstance(event, ChoiceEnd):
                        self.screen.mark()
        except TerminalError as error:
            self.screen.end(f"error: {error}")
            return
        if self.num_choices > 1:
            for text, count in count_votes([answer.text(k) for k in sorted(answer.reasons)]):
                self.screen.note(f"{count} of {len(answer.reasons)}: {text or '(nothing)'}")
        if "length" in answer.reasons.values():
            self.screen.end("(cut: the answer reached its limit of tokens or turns)")
        else:
            self.screen.end("" if answer.parts else "(no answer)")

    async def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        commands: dict[str, Callable[[str], Awaitable[None] | None]] = {
            "/help": lambda _: self.screen.note(HELP),
            "/n": self._set_choices,
            "/system": self._set_system,
            "/tools": self._show_tools,
            "/undo": lambda _: self.screen.note(f"taken back: {self.history.undo()[:200]}"),
            "/save": lambda path: self.history.save(_expand_path(path)),
            "/load": self._load,
            "/good": lambda _: self._thumb("up"),
            "/bad": lambda _: self._thumb("down"),
            "/new": self._begin_anew,
        }
        try:
            if name not in commands:
                raise TerminalError(f"{name} is not a command; /help lists them")
            work = commands[name](rest.strip())
            if work is not None and not await self._until_stopped(work):
                self.screen.note("(stopped)")
            if name == "/save":
                self.screen.note(f"saved in {rest.strip()}")
        except TerminalError as error:
            self.screen.note(f"error: {error}")

    def _set_choices(self, text: str) -> None:
        if not re.fullmatch("[0-9]{1,3}", text) or not 1 <= int(text) <= 128:
            raise TerminalError(f"/n {text[:20]}: give a number from 1 to 128")
        self.num_choices = int(text)

    def _set_system(self, text: str) -> None:
        if text:
            self.history.instruct(text)
        self.screen.note(f"system: {self.history.system or '(none)'}")

    def _show_tools(self, _: str) -> None:
        answer = self.history.answers[-1] if self.history.answers else ReceivedAnswer()
        whole = Screen(self.screen.console, shows_all=True)
        chosen = answer.best_choice()
        calls = [part for part in answer.parts if not isinstance(part, TextPart) and part.choice == chosen]
        for part in calls:
            whole.show(part)
        if not calls:
            self.screen.note("no tool was called")

    def _load(self, path: str) -> None:
        self.history = ChatHistory.load(_expand_path(path))
        for message in self.history.messages:
            self.screen.note(f"{message['role']}: {message['content']}")

    async def _thumb(self, thumb: str) -> None:
        end = self.history.answers[-1].end if self.history.answers else None
        if end is None or end.id is None:
            raise TerminalError("there is no finished answer to judge")
        answer = self.history.answers[-1]
        await self.client.thumb(end.id, answer.best_choice(), thumb)
        self.screen.note(f"noted: {thumb}")

    def _begin_anew(self, _: str) -> None:
        system = "" if self.history.ids is not None else self.history.system
        self.history = ChatHistory()
        self.history.instruct(system)


def _expand_path(text: str) -> Path:
    if not text:
        raise TerminalError("give a file after the command")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise TerminalError(f"cannot expand {text}: no such user. Pass the full path.") from None


@contextlib.contextmanager
def _on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C calls `stop` inside the block, where this thread takes signals."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, stop)
    except (RuntimeError, ValueError, NotImplementedError):  # another thread than the main one
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def answer_all(
    client: ChatClient,
    prompts: Sequence[str | None],
    *,
    num_choices: int,
    as_json: bool,
    screen: Screen,
    history: ChatHistory | None = None,
) -> bool:
    """Answer prompts non-interactively, each after the `history`. Return True if all were answered. With a
    prompt of None the policy continues."""
    good, history = True, history or ChatHistory()
    for prompt in prompts:
        session = ChatSession(client, Screen(screen.console), history=copy.deepcopy(history), num_choices=num_choices)
        if not as_json:
            good &= bool((await session.ask(prompt)).end)
            continue
        answer = ReceivedAnswer()
        stream = client.ask(history.request_messages(prompt), num_choices=num_choices, prefix_ids=history.ids)
        try:
            async with contextlib.aclosing(stream):
                async for event in stream:
                    answer.receive(event)
            print(json.dumps(answer.as_json(prompt)), flush=True)
        except TerminalError as error:
            print(json.dumps({"prompt": prompt, "error": str(error)}), flush=True)
            good = False
    return good


def raw_mode() -> contextlib.AbstractContextManager[None]:
    """Set the mode of the terminal for the whole chat, with `no_echo` during a response or a command, so that
    Ctrl-C is never a signal without a handler. Nothing changes if standard input is not a terminal, or is the
    terminal of another job.

    In the block the terminal echoes no key and stores each one, including Ctrl-C, for the next reader.
    """
    off = termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG
    return _changed(off=off, input_off=termios.ICRNL)


def no_echo() -> contextlib.AbstractContextManager[None]:
    """In the block the terminal does not echo, so that no key appears within the response.

    Keys are stored for the next reader. Ctrl-C is a signal, except one pressed before the block, which
        stays a key.
    """
    return _changed(off=termios.ECHO, on=termios.ISIG | termios.NOFLSH)  # Ctrl-C keeps the keys before it


@contextlib.contextmanager
def _changed(*, off: int, on: int = 0, input_off: int = 0) -> Iterator[None]:
    """Change the local and input modes of standard input in the block."""
    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (OSError, ValueError, termios.error):  # a pipe, a closed file, a test's own standard input
        yield
        return
    try:
        is_in_background = os.tcgetpgrp(descriptor) != os.getpgrp()
    except OSError:  # not the terminal that controls this process, which may change it then
        is_in_background = False
    if is_in_background:  # the kernel would stop this job for a change of the terminal
        yield
        return
    after = [*before]
    after[tty.IFLAG] &= ~input_off
    after[tty.LFLAG] = after[tty.LFLAG] & ~off | on
    termios.tcsetattr(descriptor, termios.TCSANOW, after)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
