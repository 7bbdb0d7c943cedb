"""Standard input that can be ended from here.

    client --pipe--> thread --socket pair--> sys.stdin, where the SDK's thread reads lines
                                end() --> which ends then, though the client holds its pipe open

A thread that waits for a client's next line cannot be called off, and the process would wait for it.
"""

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

READ_BYTES = 1 << 16


class EndableInput:
    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs:
            self.lines = theirs.makefile("r", encoding="utf-8", errors="replace")
        threading.Thread(target=self._pass_on, name="rocstar-input", daemon=True).start()

    def end(self) -> None:
        with suppress(OSError):  # it has ended
            self._ours.shutdown(socket.SHUT_WR)

    def _pass_on(self) -> None:
        with suppress(OSError):  # it was ended, or standard input cannot be read
            while read := os.read(0, READ_BYTES):
                self._ours.sendall(read)
        self.end()


@contextmanager
def endable_stdin() -> Iterator[EndableInput]:
    """In place of `sys.stdin`, where the SDK looks for it."""
    own, taken = sys.stdin, EndableInput()
    sys.stdin = taken.lines
    try:
        yield taken
    finally:
        sys.stdin = own
