"""What is typed while an answer comes."""

from __future__ import annotations

import contextlib
import os
import sys
import termios
from collections.abc import Iterator


@contextlib.contextmanager
def unseen_keys() -> Iterator[None]:
    """Inside the block the terminal does not show what is typed, so that no key stands within the answer.

    The next question begins with it; Ctrl-C is heard as ever. Nothing is done where standard input is no
    terminal, or one that belongs to another job than this one.
    """
    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (OSError, ValueError, termios.error):  # a pipe, a closed file, a test's own standard input
        yield
        return
    if _is_in_background(descriptor):
        yield
        return
    unseen = [*before]
    unseen[3] = unseen[3] & ~termios.ECHO | termios.NOFLSH  # Ctrl-C leaves what was typed before it
    termios.tcsetattr(descriptor, termios.TCSANOW, unseen)
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
