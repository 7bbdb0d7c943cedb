"""What a terminal makes of keys while a chat has it: seen or not, kept or a signal; then it is as it was."""

import contextlib
import fcntl
import io
import os
import struct
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TextIO

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_input
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.output import DummyOutput
from rich.console import Console

from rocstar.engine.serve.terminal.client import ChatClient
from rocstar.engine.serve.terminal.line_editor import LineEditor
from rocstar.engine.serve.terminal.screen import Screen
from rocstar.engine.serve.terminal.session import ChatSession, no_echo, raw_mode

from ...patience import PATIENCE_S


@dataclass(frozen=True)
class Keyboard:
    """A terminal that is this process's standard input, controls no process, and has a person at it."""

    file: TextIO
    person: int

    def type(self, keys: bytes) -> None:
        """Press keys, and wait until they are there to be read."""
        wanted = self._waiting() + len(keys)
        os.write(self.person, keys)
        deadline = time.monotonic() + PATIENCE_S
        while self._waiting() < wanted:
            assert time.monotonic() < deadline, "a key was taken for something else"

    def _waiting(self) -> int:
        count: int = struct.unpack("i", fcntl.ioctl(self.file, termios.FIONREAD, bytes(4)))[0]
        return count

    def does(self, mode: int) -> bool:
        return bool(termios.tcgetattr(self.file)[3] & mode)


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Keyboard]:
    person, descriptor = os.openpty()
    with open(descriptor) as file:
        monkeypatch.setattr("sys.stdin", file)
        yield Keyboard(file, person)
    os.close(person)


@pytest.fixture
def lines(keyboard: Keyboard, monkeypatch: pytest.MonkeyPatch) -> Iterator[LineEditor]:
    monkeypatch.setenv("TERM", "xterm")
    source = create_input(keyboard.file)
    with create_app_session(input=source, output=DummyOutput()):
        yield LineEditor(None)
    clear_typeahead(source)  # it is kept by the number of the file, which the next test's may have


def test_keys_are_seen_again_however_the_answer_ends(keyboard: Keyboard) -> None:
    before = termios.tcgetattr(keyboard.file)
    with contextlib.suppress(ZeroDivisionError), raw_mode(), no_echo():
        assert not keyboard.does(termios.ECHO)
        raise ZeroDivisionError
    assert termios.tcgetattr(keyboard.file) == before and keyboard.does(termios.ECHO)


def test_another_jobs_terminal_is_left_alone(keyboard: Keyboard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would stop a job in the background that changes it."""
    monkeypatch.setattr(os, "tcgetpgrp", lambda descriptor: os.getpgrp() + 1)
    with raw_mode(), no_echo():
        assert keyboard.does(termios.ECHO)


def test_what_is_no_terminal_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a question"))
    with raw_mode(), no_echo():
        pass


@pytest.mark.parametrize("together", ["2+2?\rab\x03cd", "2+2?\r"], ids=["read with Enter", "not yet read"])
async def test_of_keys_behind_enter_ctrl_c_is_told_once_and_the_others_begin_the_next_line(
    keyboard: Keyboard, lines: LineEditor, together: str
) -> None:
    with raw_mode():
        keyboard.type(together.encode())
        assert await lines.next() == "2+2?"
        keyboard.type(b"2+2?\rab\x03cd".removeprefix(together.encode()))
        with no_echo():
            assert lines.interrupted() and not lines.interrupted()
        keyboard.type(b"\x1b\refg\r")
        assert await lines.next() == "abcd\nefg"
        assert not lines.interrupted()


async def test_a_pasted_control_is_no_key(keyboard: Keyboard, lines: LineEditor) -> None:
    with raw_mode():
        keyboard.type(b"2+2?\r\x1b[200~a\x03b\x1b[201~\r")
        assert await lines.next() == "2+2?"
        assert not lines.interrupted()
        assert await lines.next() == "a\x03b"


@dataclass
class Watched:
    """Implements `Lines`: who asks twice, and notes whether Ctrl-C is a signal."""

    keyboard: Keyboard
    noted: list[tuple[str, bool]] = field(default_factory=list)

    async def next(self) -> str:
        self._note("before Enter")
        return "2+2?" if len(self.noted) < 4 else "/quit"

    def interrupted(self) -> bool:
        self._note("behind Enter")
        return True

    def _note(self, when: str) -> None:
        self.noted.append((when, self.keyboard.does(termios.ISIG)))


async def test_ctrl_c_is_a_signal_only_where_one_is_waited_for(keyboard: Keyboard) -> None:
    """And what was pressed before that ends the answer, of which nothing is asked."""
    watched, out = Watched(keyboard), io.StringIO()
    async with ChatClient(url="http://127.0.0.1:1/v1") as nobody:
        await ChatSession(nobody, Screen(Console(file=out))).run(watched)
    assert watched.noted == [("before Enter", False), ("behind Enter", True)] * 2 + [("before Enter", False)]
    assert out.getvalue() == "(stopped)\n" * 2 and keyboard.does(termios.ISIG)
