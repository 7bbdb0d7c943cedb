"""What a terminal makes of keys while a chat has it.

    held_keys      the whole chat: each key waits, as it is, for the prompt that reads it; Ctrl-C is a key
      unseen_keys  an answer or a command in it: they still wait, but Ctrl-C is a signal

So at every moment Ctrl-C is one of both, and none of it ends the chat because nobody was ready for a signal.
"""

from __future__ import annotations

import contextlib
import os
import sys
import termios
from collections.abc import Callable, Iterator
from typing import Any

INPUT, LOCAL = 0, 3
"""Places among the attributes of a terminal."""


@contextlib.contextmanager
def held_keys() -> Iterator[None]:
    """Inside the block the terminal shows no key, and keeps each as it is, Ctrl-C too, for who reads next.

    Nothing is done where standard input is no terminal, or one that belongs to another job than this one.
    """

    def held(attributes: list[Any]) -> None:
        attributes[INPUT] &= ~termios.ICRNL
        attributes[LOCAL] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG)

    with _changed(held):
        yield


@contextlib.contextmanager
def unseen_keys() -> Iterator[None]:
    """Inside the block the terminal does not show what is typed, so that no key stands within the answer.

    Who reads next begins with it; Ctrl-C is a signal from here on, and one that was typed before is what it
    was. Nothing is done where standard input is no terminal, or one that belongs to another job than this one.
    """

    def unseen(attributes: list[Any]) -> None:
        attributes[LOCAL] &= ~termios.ECHO
        attributes[LOCAL] |= termios.ISIG | termios.NOFLSH  # Ctrl-C leaves what was typed before it

    with _changed(unseen):
        yield


@contextlib.contextmanager
def _changed(change: Callable[[list[Any]], None]) -> Iterator[None]:
    """Inside the block standard input has the attributes that `change` makes of its own."""
    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (OSError, ValueError, termios.error):  # a pipe, a closed file, a test's own standard input
        yield
        return
    if _is_in_background(descriptor):
        yield
        return
    after = [*before]
    change(after)
    termios.tcsetattr(descriptor, termios.TCSANOW, after)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


def _is_in_background(descriptor: int) -> bool:
    """Whether the kernel would stop this job for a change of the terminal."""
    try:
        return os.tcgetpgrp(descriptor) != os.getpgrp()
    except OSError:  # not the terminal that controls this process, which may change it then
        return False
