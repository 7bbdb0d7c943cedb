"""Terminal modes of a chat.

    raw_mode   the whole chat: keys wait for the prompt, and Ctrl-C is one of them
      no_echo  during a response or a command: the same, but Ctrl-C is a signal

So Ctrl-C is never a signal without a handler. Nothing changes if standard input is not a terminal, or is the
terminal of another job.
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
def raw_mode() -> Iterator[None]:
    """In the block the terminal echoes no key and stores each one, including Ctrl-C, for the next reader."""

    def held(attributes: list[Any]) -> None:
        attributes[tty.IFLAG] &= ~termios.ICRNL
        attributes[tty.LFLAG] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG)

    with _changed(held):
        yield


@contextlib.contextmanager
def no_echo() -> Iterator[None]:
    """In the block the terminal does not echo, so that no key appears within the response.

    Keys are stored for the next reader. Ctrl-C is a signal, except one pressed before the block, which
        stays a key.
    """

    def unseen(attributes: list[Any]) -> None:
        attributes[tty.LFLAG] &= ~termios.ECHO
        attributes[tty.LFLAG] |= termios.ISIG | termios.NOFLSH  # Ctrl-C keeps the keys before it

    with _changed(unseen):
        yield


@contextlib.contextmanager
def _changed(change: Callable[[list[Any]], None]) -> Iterator[None]:
    """Change the attributes of standard input in the block."""
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
    change(after)
    termios.tcsetattr(descriptor, termios.TCSANOW, after)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
