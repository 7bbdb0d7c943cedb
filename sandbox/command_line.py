"""Errors, suggestions, exit codes and status lines of commands.

Exit status: 2 for a user error or a failure of the sandbox, 130 after Ctrl-C, 141 if the output's reader is
gone.
"""

import argparse
import difflib
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from rocstar.sandbox.extras import shell_command
from rocstar.sandbox.types import SandboxError

Parsed = TypeVar("Parsed")
USAGE_ERROR = 2
INTERRUPTED = 130
UNREAD = 141
"""Exit codes of a shell for SIGINT and SIGPIPE."""


_SIMILAR, _SIMILAR_WORD = 0.72, 0.6
"""The smallest ratios of difflib for a whole name, and for each word of names with as many words."""


def closest(name: str, known: Iterable[str]) -> str:
    """Return the known name that `name` probably is with a typing error, or "" if none is similar enough.

    `clip_eps` is not taken for `clip_low`, nor `float8` for `float32`: each word of a name must be similar by
    itself, and the digits equal.
    """
    lowered, names = name.lower(), {one.lower(): one for one in known}
    for near in difflib.get_close_matches(lowered, names, cutoff=_SIMILAR):
        words, others = re.split(r"[-_. ]", near), re.split(r"[-_. ]", lowered)
        ratios = [difflib.SequenceMatcher(None, a, b).ratio() for a, b in zip(words, others, strict=False)]
        is_similar = len(words) != len(others) or min(ratios) >= _SIMILAR_WORD
        if is_similar and re.findall(r"\d", near) == re.findall(r"\d", lowered):
            return names[near]
    letters = sorted(lowered) if lowered.isalpha() else None
    longer = [one for one in names if one.startswith(lowered) or sorted(one) == letters]
    return names[longer[0]] if lowered and len(longer) == 1 else ""


def suggest(name: str, known: Iterable[str], *, most: int = 30) -> str:
    """Return a question with the closest known name, or the known names."""
    known = list(known)
    if near := closest(name, known):
        return f"did you mean {near!r}?"
    return f"choose from {', '.join(known[:most])}{', ...' if len(known) > most else ''}"


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one line, with a suggestion for a value that is not a choice."""

    def error(self, message: str) -> NoReturn:
        more = "" if message.endswith("?") else f"; see `{self.prog} --help`"
        self.exit(USAGE_ERROR, f"{self.prog}: {message}{more}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            what = f"{'/'.join(action.option_strings) or str(action.metavar).lower()} {value!r}"
            self.error(f"{what} is not known; {suggest(str(value), map(str, action.choices))}")


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


def number_option(low: float, high: float, what: str, kind: type[int] | type[float] = int) -> Callable[[str], Any]:
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


_TYPES: Mapping[str, type] = {"path": Path, "int": int, "float": float}


def add_options(
    parser: argparse._ActionsContainer,
    options: Mapping[str, Mapping[str, Any]],
    texts: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Add the options of a table by name.

    An entry has the arguments of `add_argument`, with a name of _TYPES as `type`. Instead of a type it may have
    `whole` or `real`: the name, the least and the greatest value of a number (`number_option`). Of the options with
    the same `one_of` only one may be given. `texts`: replaces <NAME> in help.
    """
    groups: dict[str, argparse._MutuallyExclusiveGroup] = {}
    for name, entry in options.items():
        arguments = dict(entry)
        for key, kind in (("whole", int), ("real", float)):
            if key in entry:
                what, low, *high = arguments.pop(key)
                arguments["type"] = number_option(low, high[0] if high else sys.float_info.max, what, kind)
        if "type" in entry:
            arguments["type"] = _TYPES[entry["type"]]
        for mark, text in texts.items():
            arguments["help"] = arguments["help"].replace(f"<{mark}>", text)
        group = arguments.pop("one_of", None)
        if group is not None and group not in groups:
            groups[group] = parser.add_mutually_exclusive_group()
        (parser if group is None else groups[group]).add_argument(name, **arguments)


def format_error(error: BaseException, path: str | os.PathLike[str] = "") -> str:
    """Format an error as one line, with the path of an OSError or `path`. An OSError's own text has a number
    and a quoted path."""
    name, text = path, str(error)
    if isinstance(error, OSError) and error.strerror:
        name, text = error.filename or path, error.strerror
    return " ".join(f"{os.fsdecode(name)}{': ' if name else ''}{text}".split())


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
        f"{problem}; `{shell_command('sandbox', 'doctor')}` shows why. Start as an ordinary user, or accept "
        "it with --allow-shared-user."
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
