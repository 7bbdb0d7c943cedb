"""Errors, exit codes and status lines of the verbs of `rocstar sandbox`.

Exit status: 2 for a user error or a failure of the sandbox, 130 after Ctrl-C, 141 if the output's reader is
gone.
"""

import argparse
import os
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rocstar.sandbox.types import SandboxError

Parsed = TypeVar("Parsed")
USAGE_ERROR = 2
INTERRUPTED = 130
UNREAD = 141
"""Exit codes of a shell for SIGINT and SIGPIPE."""


def run_command(work: Callable[[], int]) -> int:
    """Return the exit status of `work`, or print its error and return the status for it."""
    try:
        status = work()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print_status("interrupted")
        return INTERRUPTED
    except (SandboxError, OSError, ValueError) as error:
        if isinstance(error, BrokenPipeError) and is_unread():
            return UNREAD
        print_status(format_error(error))
        return USAGE_ERROR
    return status


def parse_or_exit(parse: Callable[[], Parsed]) -> Parsed:
    """Return the result of `parse`. If it prints help and exits, ignore a closed output, for which some
    versions of Python print an error."""
    try:
        return parse()
    except SystemExit:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            if not is_unread():
                raise
        raise


def number_option(
    low: float, high: float, what: str, kind: type[int] | type[float] = int
) -> Callable[[str], Any]:
    """Return a parser of an option's number from `low` to `high`, for argparse."""

    def parse(text: str) -> int | float:
        value = None
        with suppress(ValueError):
            if kind is float or text.removeprefix("-").isdecimal():  # int() takes "1_000" and "+5", too
                value = kind(text)
        if value is None or not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return parse


def format_error(error: Exception) -> str:
    """Format an error as one line. An OSError's own text has a number and a quoted path."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return " ".join(str(error).split())


def print_status(text: str, verb: str = "") -> None:
    """Print a line to standard error and flush. A closed standard error is ignored, so that a service
    continues."""
    with suppress(OSError):
        print(f"rocstar sandbox{verb and ' '}{verb}: {text}", file=sys.stderr, flush=True)


def is_unread() -> bool:
    """Return True if the reader of standard output is gone (`... | head`), and discard further output."""
    poll = select.poll()
    poll.register(1, 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return True


def require_own_users(isolation: str, allowed: bool, verb: str) -> None:
    """Raise ValueError for a server that runs as root and whose programs would run as root, too."""
    if os.geteuid() != 0 or "uid" in isolation.split("+"):
        return
    problem = "programs would run as root"
    if allowed:
        return print_status(f"{problem}: --allow-shared-user", verb)
    raise ValueError(
        f"{problem}; `rocstar sandbox doctor` shows why. Start as an ordinary user, or accept it with "
        "--allow-shared-user."
    )


@dataclass(eq=False)
class Starting:
    """Prints the progress of a starting pool: a line at first, and one for each warm flavour."""

    verb: str
    what: str
    clock: Callable[[], float] = time.monotonic
    _warm: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._started_s = self.clock()
        print_status(f"starting {self.what}", self.verb)

    def warm(self, flavour: str) -> None:
        """Print a line for the first warm interpreter of a flavour."""
        if flavour not in self._warm:
            self._warm.add(flavour)
            print_status(f"{flavour} is warm after {self.clock() - self._started_s:.1f} s", self.verb)


@dataclass(eq=False)
class Waiting:
    """Prints a line every few seconds while the process waits."""

    EVERY_S = 5.0

    verb: str
    place: str
    patience_s: float
    _next_s: float = 0.0

    def tried(self, waited_s: float, reason: str) -> None:
        """Record a failed attempt; print the first, then one per interval."""
        if waited_s >= self._next_s:
            self._next_s = waited_s + self.EVERY_S
            left = f"of {self.patience_s:g} s" if self.patience_s != float("inf") else "without limit"
            print_status(f"waiting for {self.place}, {waited_s:.0f} s {left}: {reason}", self.verb)
