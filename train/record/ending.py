"""The end of a command: its exit code, and one line for an error outside this program.

Codes: 0 done, 1 the work failed, 2 a recipe, option, path or disk is not usable, 130 interrupted. A bug keeps
its traceback.
"""

import errno
import os
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

from rocstar.sandbox.command_line import is_unread
from rocstar.train.recipe.errors import ConfigError, ConfigErrors, TrainingStopped, mark_mistake

_TEXTS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("ending.toml").read_text(encoding="utf-8"))
_NO_ROOM, _FIXES = (
    {getattr(errno, name): text for name, text in _TEXTS[kind].items()} for kind in ("no_room", "path")
)
_PACKAGE = Path(__file__).resolve().parents[2]
_OURS = (*(_PACKAGE / name for name in ("engine", "kernels", "sandbox", "train")), Path("/proc"), Path("/sys"))
"""Folders whose paths no user chose: an error there is a bug."""


def guarded(
    work: Callable[[], int], *, resumes: bool = False, interrupted: Callable[[], str] = lambda: "interrupted"
) -> int:
    """Turn user errors and interruptions into one line and an exit code.

    `resumes`: True if the verb has --resume, for the advice. `interrupted` returns the message after Ctrl-C.
    """
    return mark_mistake(_exit_code(work, resumes=resumes, interrupted=interrupted))


def _exit_code(work: Callable[[], int], *, resumes: bool, interrupted: Callable[[], str]) -> int:
    try:
        code = work()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        if text := interrupted():
            print(text, file=sys.stderr)
        return 130
    except ConfigErrors as error:
        for problem in error.problems:
            print(f"rocstar: {_one_line(problem)}", file=sys.stderr)
        return 2
    except ConfigError as error:
        print(f"rocstar: {_one_line(str(error))}", file=sys.stderr)
        return 2
    except TrainingStopped as error:
        print(f"rocstar: {_one_line(str(error))}", file=sys.stderr)
        return 1
    except OSError as error:
        if isinstance(error, BrokenPipeError) and is_unread():
            return 141  # as a shell names an end by SIGPIPE
        if (message := of_system(error)) is None:
            raise
        again = ", then go on with --resume" if resumes and error.errno in _NO_ROOM else ""
        print(f"rocstar: {message}{again}", file=sys.stderr)
        return 2


def of_system(error: OSError) -> str | None:
    """Return the message of a system error that the user can fix; None if it may be a bug of ours."""
    path = error.filename if isinstance(error.filename, str) else None
    if error.errno in _NO_ROOM:
        return _NO_ROOM[error.errno].format(f" at {path}" if path else "")
    if error.errno not in _FIXES or path is None:
        return None
    place = Path(path).absolute()
    if any(place.is_relative_to(ours) for ours in _OURS):
        return None
    if error.errno == errno.ENOENT and place.parent.is_dir():
        return None  # our own missing check: the folder exists and the file does not
    unread = error.errno != errno.EROFS and os.path.exists(place) and not os.access(place, os.R_OK)
    is_closed = error.errno == errno.EACCES and not os.access(place.parent, os.X_OK)
    unreached = error.errno == errno.ENAMETOOLONG or is_closed
    does = "read" if unread else "reach" if unreached else "write"
    return f"cannot {does} {path!r}: {error.strerror}; {_FIXES[error.errno]}"


def _one_line(message: str) -> str:
    """Join the lines of a message, except those of a difference between two texts."""
    head, is_diff, diff = message.partition("\n--- ")
    return " ".join(head.split()) + is_diff + diff
