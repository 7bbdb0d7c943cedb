"""While an answer comes, a terminal does not show what is typed; otherwise it is left as it is."""

import contextlib
import io
import os
import termios
from collections.abc import Iterator

import pytest

from rocstar.engine.serve.terminal.keys import unseen_keys


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A terminal that is this process's standard input, and controls no process."""
    person, descriptor = os.openpty()
    with open(descriptor) as file:
        monkeypatch.setattr("sys.stdin", file)
        yield descriptor
    os.close(person)


def shows_keys(terminal: int) -> bool:
    return bool(termios.tcgetattr(terminal)[3] & termios.ECHO)


def test_keys_are_seen_again_however_the_answer_ends(terminal: int) -> None:
    with contextlib.suppress(ZeroDivisionError), unseen_keys():
        assert not shows_keys(terminal)
        raise ZeroDivisionError
    assert shows_keys(terminal)


def test_another_jobs_terminal_is_left_alone(terminal: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would stop a job in the background that changes it."""
    monkeypatch.setattr(os, "tcgetpgrp", lambda descriptor: os.getpgrp() + 1)
    with unseen_keys():
        assert shows_keys(terminal)


def test_what_is_no_terminal_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a question"))
    with unseen_keys():
        pass
