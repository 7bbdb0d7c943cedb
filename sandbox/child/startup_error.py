"""The error that a zygote reports before it exits because its flavour cannot start.

An exception during an import is raised again at the next start, so it is not retryable; it is reported with
the end of its traceback. A zygote that is killed reports nothing, and the supervisor starts another.
"""

import importlib
import traceback
from pathlib import Path
from types import TracebackType

from rocstar.sandbox.child.flavours import FLAVOURS, Flavour

MOST_FRAMES = 3
MOST_CHARS = 2000
"""The longest text of an exception: it may hold anything."""

OMITTED_FILES = ("<frozen ", str(importlib.__file__), str(Path(__file__).with_name("zygote.py")))
"""Files whose frames are between the zygote and the imported module and explain nothing."""


def startup_error(flavour: Flavour, step: str, error: BaseException) -> dict[str, str | bool]:
    """Return the fields of a FATAL frame. step: the zygote's step, for example "importing numpy"."""
    if isinstance(error, ModuleNotFoundError):
        install = flavour.install or "repair this Python"
        message = f"flavour {flavour.name!r} needs {error.name or error}: {install}"
        return {"kind": "missing_import", "message": message, "module": error.name or ""}
    problem = f"flavour {flavour.name!r} cannot start: {step} raised {summarize_error(error)}"
    message = f"{problem}; {suggest_fix(flavour)}"
    if frames := format_frames(error.__traceback__):
        message += f". The traceback's end:\n{frames}"
    return {"kind": "zygote_start", "retryable": False, "message": message}


def summarize_error(error: BaseException) -> str:
    """Return the last line of the traceback; for a syntax error also its file and line."""
    text = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, SyntaxError):
        text = f"{text.rpartition(chr(10))[2]} ({error.filename}, line {error.lineno})"
    return text[:MOST_CHARS]


def suggest_fix(flavour: Flavour) -> str:
    if flavour.name not in FLAVOURS:
        return (
            "fix it, or remove it from the flavour's imports: the sandbox has no network, no home directory "
            "and no writable disk"
        )
    return f"repair its packages ({flavour.install})" if flavour.install else "repair this Python"


def format_frames(trace: TracebackType | None) -> str:
    """Format the last frames as a traceback does."""
    frames = [one for one in traceback.extract_tb(trace) if not one.filename.startswith(OMITTED_FILES)]
    return "".join(traceback.format_list(frames[-MOST_FRAMES:])).rstrip()
