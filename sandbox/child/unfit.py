"""Why a flavour cannot be, as its zygote says it before it ends.

What Python raises while something is imported, it raises again the next time: that is told at once, with the
end of the traceback. A zygote that is killed meanwhile tells nothing, and the supervisor tries it again.
"""

import importlib
import traceback
from pathlib import Path
from types import TracebackType

from rocstar.sandbox.child.flavours import FLAVOURS, Flavour

MOST_FRAMES = 3
MOST_CHARS = 2000
"""Of an error's own text, which may hold anything."""

BETWEEN = ("<frozen ", str(importlib.__file__), str(Path(__file__).with_name("zygote.py")))
"""Files whose frames lie between the zygote and what it imports, and say nothing."""


def reason(flavour: Flavour, step: str, error: BaseException) -> dict[str, str | bool]:
    """For the pool. step: what the zygote was at, as in "importing numpy"."""
    if isinstance(error, ModuleNotFoundError):
        install = flavour.install or "repair this Python"
        message = f"flavour {flavour.name!r} needs {error.name or error}: {install}"
        return {"kind": "missing_import", "message": message, "module": error.name or ""}
    message = f"flavour {flavour.name!r} cannot start: {step} raised {text_of(error)}; {fix_of(flavour)}"
    if frames := frames_of(error.__traceback__):
        message += f". The traceback's end:\n{frames}"
    return {"kind": "zygote_start", "retryable": False, "message": message}


def text_of(error: BaseException) -> str:
    """What stands in a traceback's last line; of a mistake in a source where it is, too."""
    text = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, SyntaxError):
        text = f"{text.rpartition(chr(10))[2]} ({error.filename}, line {error.lineno})"
    return text[:MOST_CHARS]


def fix_of(flavour: Flavour) -> str:
    if flavour.name not in FLAVOURS:
        return "mend it, or take it from the flavour's imports: there is no network, home or disk to write on"
    return f"repair what it needs ({flavour.install})" if flavour.install else "repair this Python"


def frames_of(trace: TracebackType | None) -> str:
    """The last of them, as a traceback shows them."""
    frames = [one for one in traceback.extract_tb(trace) if not one.filename.startswith(BETWEEN)]
    return "".join(traceback.format_list(frames[-MOST_FRAMES:])).rstrip()
