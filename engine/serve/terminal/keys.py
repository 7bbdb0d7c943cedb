"""What a terminal makes of keys while a chat has it.

    held_keys      the whole chat: keys wait for the prompt as they are, and Ctrl-C is one of them
      unseen_keys  while an answer comes or a command is at work: the same, but Ctrl-C is a signal

So there is no moment at which Ctrl-C is a signal that nobody waits for. Nothing is done where standard input
is no terminal, or one that belongs to another job than this one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def held_keys() -> Iterator[None]:
    """Inside the block the terminal shows no key, and keeps each as it is, Ctrl-C too, for who reads next."""

    def held(attributes: list[Any]) -> None:
        attributes[tty.IFLAG] &= ~termios.ICRNL
        attributes[tty.LFLAG] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG)

    with _changed(held):
        yield


@contextlib.contextmanager
def unseen_keys() -> Iterator[None]:
    """Inside the block the terminal does not show what is typed, so that no key stands within the answer.

    What is typed is kept for who reads next. Ctrl-C is a signal; one that was typed before the block is still
    the key it was.
    """

    def unseen(attributes: list[Any]) -> None:
        attributes[tty.LFLAG] &= ~termios.ECHO
        attributes[tty.LFLAG] |= termios.ISIG | termios.NOFLSH  # Ctrl-C leaves what was typed before it

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
