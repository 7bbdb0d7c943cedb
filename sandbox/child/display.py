"""Displays of a program: figures, and values with a picture or page representation.

    display(value), plt.show(), figures that are open at the end, a value at the end of a cell
        --> a file of DISPLAY_FOLDER: the type's name, a newline, the content --> csrc/sandbox/fetch.h

If the caller requests no displays, `display` prints and figures are dropped. The zygote imports this module
and `figures.py`, so that a child reads no files of rocstar. Each cell reuses the file names, because every
created file counts against the limit.
"""

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from rocstar.sandbox.files import DISPLAY_FOLDER, MAX_DISPLAYS

METHODS = (
    *(("image/png", "_repr_png_"), ("image/jpeg", "_repr_jpeg_"), ("image/svg+xml", "_repr_svg_")),
    *(("text/html", "_repr_html_"), ("text/markdown", "_repr_markdown_"), ("text/latex", "_repr_latex_")),
)
"""Types and the methods of values that return them, as in notebooks."""

MODULES = sys.modules
"""The interpreter's module table, even if a program replaces `sys.modules`."""

_folder = _home = ""
_shown = 0


def begin(wanted: bool) -> None:
    """Start a call or a cell: remove the displays of the previous one."""
    global _folder, _home, _shown
    if wanted and not _home:
        _home = os.path.join(os.getcwd(), DISPLAY_FOLDER)  # a later cell may change the directory
    _folder = _home if wanted else ""
    _shown = 0
    if wanted and os.path.isdir(_folder):
        for name in os.listdir(_folder):
            os.truncate(os.path.join(_folder, name), 0)


def display(*values: object) -> None:
    """Show values as pictures or pages if they support it and the caller requested displays, else as text."""
    for value in values:
        if not show_value(value):
            print(repr(value))


def show_value(value: object) -> bool:
    """Display a value. Return False if it has no display or the caller requested none."""
    return bool(_folder) and (_show_figure(value) or _show_as_file(value))


def show_figures() -> None:
    """Display and close pyplot's open figures."""
    managers = MODULES.get("matplotlib._pylab_helpers")
    if managers is None:
        return
    if _folder:
        for manager in managers.Gcf.get_all_fig_managers():
            _show_figure(manager.canvas.figure)
    managers.Gcf.destroy_all()


def _show_figure(value: object) -> bool:
    figures = MODULES.get("matplotlib.figure")
    if figures is None or not isinstance(value, figures.Figure):
        return False
    import io

    picture = io.BytesIO()
    with warnings.catch_warnings(record=True) as caught:  # printed without the line of this file
        value.savefig(picture, format="png", bbox_inches="tight")
    for text in dict.fromkeys(f"{one.category.__name__}: {one.message}" for one in caught):
        print(text, file=sys.stderr)
    keep("image/png", picture.getvalue())
    if (managers := MODULES.get("matplotlib._pylab_helpers")) is not None:
        managers.Gcf.destroy_fig(value)
    return True


def _show_as_file(value: object) -> bool:
    for mime, name in METHODS:
        own: Callable[[], Any] | None = getattr(value, name, None)
        content = own() if callable(own) and not isinstance(value, type) else None
        if isinstance(content, str):
            content = content.encode("utf-8", "replace")
        if isinstance(content, bytes) and content:
            keep(mime, content)
            return True
    return False


def keep(mime: str, content: bytes) -> None:
    """Write a display to a file; report on standard error if it cannot be written."""
    global _shown
    if _shown >= MAX_DISPLAYS:
        return
    try:
        fd = _open(os.path.join(_folder, str(_shown)))
        left = memoryview(mime.encode() + b"\n" + content)
        try:
            while left:
                left = left[os.write(fd, left) :]
        except OSError:
            os.ftruncate(fd, 0)
            raise
        finally:
            os.close(fd)
    except OSError as error:
        print(f"cannot store a display: {error.strerror}", file=sys.stderr)
        return
    _shown += 1


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    except FileNotFoundError:
        os.makedirs(_folder, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
