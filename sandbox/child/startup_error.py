"""The error that a zygote reports before it exits because its flavour cannot start.

An exception during an import is raised again at the next start, so it is not retryable; it is reported with
the end of its traceback. A zygote that is killed reports nothing, and the supervisor starts another.
"""

import importlib
import traceback
from pathlib import Path

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
    text = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, SyntaxError):
        text = f"{text.rpartition(chr(10))[2]} ({error.filename}, line {error.lineno})"
    fix = f"repair its packages ({flavour.install})" if flavour.install else "repair this Python"
    if flavour.name not in FLAVOURS:
        fix = (
            "fix it, or remove it from the flavour's imports: the sandbox has no network, no home directory "
            "and no writable disk"
        )
    message = f"flavour {flavour.name!r} cannot start: {step} raised {text[:MOST_CHARS]}; {fix}"
    stack = traceback.extract_tb(error.__traceback__)
    if frames := [one for one in stack if not one.filename.startswith(OMITTED_FILES)]:
        last = "".join(traceback.format_list(frames[-MOST_FRAMES:])).rstrip()
        message += f". The traceback's end:\n{last}"
    return {"kind": "zygote_start", "retryable": False, "message": message}
