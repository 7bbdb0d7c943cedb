"""The text of an uncaught error, as the interpreter writes it, without the frames of libraries.

    error -> plain_text: a single built-in error, at most three frames, ASCII lines -> its text
                | else None
                +-> full_text: the traceback module

A third of an untrained policy's calls end in an error. The traceback module parses each line and indents each
text, which changes memory that the kernel copies for the child page by page: two thirds of the program's own
cost.
"""

import builtins
import errno
import linecache
import sys
from itertools import islice
from traceback import TracebackException
from types import TracebackType

CELL_FILE = "<cell"
"""The prefix of the file names of cells."""
IS_KNOWN = sys.version_info[:2] == (3, 11)
"""True if `plain_text` matches this version of the traceback module."""
MOST_FRAMES = 3
"""Longer tracebacks may have repeated frames, which the traceback module abbreviates."""
OPERATORS = frozenset("+-*/%@&|^<>[")
"""Operators that the traceback module may mark separately within an expression."""


def error_text(error: BaseException) -> str:
    """Return the traceback as lines with newlines. Raise MemoryError."""
    text = plain_text(error) if IS_KNOWN else None
    return full_text(error) if text is None else text


def full_text(error: BaseException) -> str:
    """Return the text of the traceback module, with causes and groups."""
    trace = error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(CELL_FILE):
        trace = trace.tb_next  # frames of rocstar, which must not count for the program's sys.tracebacklimit
    summary = TracebackException(type(error), error, trace, lookup_lines=False, compact=True)
    keep_cell_frames(summary)
    return "".join(summary.format())


def keep_cell_frames(summary: TracebackException) -> None:
    """Remove the frames of libraries from an error and its causes, contexts and members."""
    left, seen = [summary], {id(summary)}
    while left:  # a chain may be longer than the interpreter's stack is deep
        one = left.pop()
        one.stack[:] = [frame for frame in one.stack if frame.filename.startswith(CELL_FILE)]
        for other in (one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())):
            if other is not None and id(other) not in seen:
                seen.add(id(other))
                left.append(other)


def limit_text(error: BaseException) -> str:
    """Return a line that names the sandbox limit that caused an error, or ""."""
    if not isinstance(error, OSError):
        return ""
    if error.errno == errno.EDQUOT:
        return "sandbox: a program may have only so many files and folders at a time (limits.files)\n"
    # numpy reports how much of an array was written, and no error number.
    if error.errno == errno.EFBIG or (error.errno is None and "requested and" in str(error)):
        import resource  # not imported in the zygote, where its library would cost every child memory

        most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        return f"sandbox: a file may have {most} bytes (limits.file_bytes)\n"
    return ""


def plain_text(error: BaseException) -> str | None:
    """Return the text of a simple error, or None if it needs `full_text`."""
    kind = type(error)
    if (
        vars(builtins).get(kind.__name__) is not kind
        or isinstance(error, BaseExceptionGroup)
        or error.__cause__ is not None
        or (error.__context__ is not None and not error.__suppress_context__)
        or getattr(error, "__notes__", None) is not None
        or hasattr(sys, "tracebacklimit")
    ):
        return None
    frames = frame_texts(error.__traceback__)
    last = syntax_text(error) if isinstance(error, SyntaxError) else last_line(error)
    if frames is None or last is None:
        return None
    head = "Traceback (most recent call last):\n" if frames else ""
    return f"{head}{frames}{last}"


def frame_texts(trace: TracebackType | None) -> str | None:
    """Return the text of the cell's frames, outermost first, or None if it needs `full_text`."""
    texts: list[str] = []
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(CELL_FILE):
            text = frame_text(trace)
            if text is None or len(texts) == MOST_FRAMES:
                return None
            texts.append(text)
        trace = trace.tb_next
    return "".join(texts)


def frame_text(trace: TracebackType) -> str | None:
    """Return a frame's location, line, and marks below the failing part if that is not the whole line; or
    None."""
    code = trace.tb_frame.f_code
    if trace.tb_lasti < 0:
        return None
    number, end_number, start, end = next(islice(code.co_positions(), trace.tb_lasti // 2, None))
    if number is None or number != end_number or start is None or end is None:
        return None
    line = linecache.getline(code.co_filename, number)
    shown = line.strip()
    if not shown or not line.isascii() or end > len(line) or not OPERATORS.isdisjoint(line[start:end]):
        return None
    text = f'  File "{code.co_filename}", line {number}, in {code.co_name}\n    {shown}\n'
    if end - start >= len(shown):
        return text
    # As in the traceback module: the newline counts as indentation, and the program's last line may have
    # none.
    return f"{text}    {' ' * (start + 1 - (len(line) - len(shown)))}{'^' * (end - start)}\n"


def last_line(error: BaseException) -> str | None:
    """Return the error's name and message, or None if its message raises."""
    try:
        message = str(error)
    except BaseException:  # the error's class may be the program's
        return None
    name = type(error).__qualname__
    return f"{name}: {message}\n" if message else f"{name}\n"


def syntax_text(error: SyntaxError) -> str | None:
    """Return the text of a syntax error: its line, marks and message; or None."""
    line, offset, end = error.text, error.offset, error.end_offset
    if not (type(line) is str and type(offset) is int and type(error.lineno) is int):
        return None
    if not (end is None or type(end) is int) or type(error.msg) is not str or not error.filename:
        return None
    whole = line.rstrip("\n")
    shown = whole.lstrip(" \n\f")
    text = f'  File "{error.filename}", line {error.lineno}\n    {shown}\n'
    if not end or end == offset or end == -1:
        end = offset + 1
    first = offset - 1 - (len(whole) - len(shown))
    if first >= 0:
        indent = "".join([character if character.isspace() else " " for character in shown[:first]])
        text += f"    {indent}{'^' * (end - offset)}\n"
    return f"{text}{type(error).__qualname__}: {error.msg or '<no detail available>'}\n"
