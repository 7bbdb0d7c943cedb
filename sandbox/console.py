"""What all verbs of `rocstar sandbox` have in common: a mistake, Ctrl-C and unread output end in one line.

Exit status: 2 for a mistake or a failure of the sandbox, 130 after Ctrl-C, 141 when nobody reads the output.
"""

import os
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from rocstar.sandbox.types import SandboxError

Parsed = TypeVar("Parsed")
USAGE_ERROR = 2
INTERRUPTED = 130
UNREAD = 141
"""Exit codes as a shell names ends by SIGINT and SIGPIPE."""


def guarded(work: Callable[[], int]) -> int:
    """The exit status of `work`, or of what kept it from its end."""
    try:
        status = work()
        sys.stdout.flush()
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except (SandboxError, OSError, ValueError) as error:
        if isinstance(error, BrokenPipeError) and is_unread():
            return UNREAD
        say(told(error))
        return USAGE_ERROR
    return status


def parsed(parse: Callable[[], Parsed]) -> Parsed:
    """What `parse` gives. Where it prints help and ends, unread help is no error: some Pythons print one."""
    try:
        return parse()
    except SystemExit:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            if not is_unread():
                raise
        raise


def told(error: Exception) -> str:
    """One line. An OSError's own text is a number and a quoted path."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return " ".join(str(error).split())


def say(text: str, verb: str = "") -> None:
    """Write to standard error, at once, also when it is a pipe. Where its reader is gone, a closed terminal
    say, a service goes on."""
    with suppress(OSError):
        print(f"rocstar sandbox{verb and ' '}{verb}: {text}", file=sys.stderr, flush=True)


def is_unread() -> bool:
    """Whether nobody reads standard output any more (`... | head`). Nothing more is written to it then, nor
    at the end of the process."""
    poll = select.poll()
    poll.register(1, 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return True


def require_own_users(isolation: str, allowed: bool, verb: str) -> None:
    """Raises ValueError for a server of root whose programs all are root's, which nobody would expect."""
    if os.geteuid() != 0 or "uid" in isolation.split("+"):
        return
    problem = "programs would have no user of their own, though this is root"
    if allowed:
        return say(f"{problem}: --allow-shared-user", verb)
    raise ValueError(
        f"{problem}; `rocstar sandbox doctor` tells why. Start it as an ordinary user, or accept it with "
        "--allow-shared-user"
    )


class Starting:
    """Shows what a pool that starts is at: a line at first, and one for each flavour that is warm."""

    def __init__(self, verb: str, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._verb = verb
        self._clock = clock
        self._started_s = clock()
        self._warm: set[str] = set()
        say(f"starting {what}", verb)

    def warm(self, flavour: str) -> None:
        """Told of every interpreter; those that replace one say nothing."""
        if flavour not in self._warm:
            self._warm.add(flavour)
            say(f"{flavour} is warm after {self._clock() - self._started_s:.1f} s", self._verb)


class Waiting:
    """Shows, every few seconds, that something is waited for."""

    EVERY_S = 5.0

    def __init__(self, verb: str, place: str, patience_s: float) -> None:
        self._verb = verb
        self._place = place
        self._patience_s = patience_s
        self._next_s = 0.0

    def tried(self, waited_s: float, reason: str) -> None:
        """Told of every attempt that failed. The first is shown."""
        if waited_s >= self._next_s:
            self._next_s = waited_s + self.EVERY_S
            left = f"of {self._patience_s:g} s" if self._patience_s != float("inf") else "without end"
            say(f"waiting for {self._place}, {waited_s:.0f} s {left}: {reason}", self._verb)
