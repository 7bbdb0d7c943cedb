"""The text of an uncaught error: as the interpreter writes it, without the frames of libraries.

    error -> plain_text: one usual error, at most three frames, lines of ASCII -> its text
                | else None
                +-> full_text: the traceback module

A third of a young policy's calls end in an error. What the module does on its way (it parses each line that
it shows, it indents each piece of text) changes memory, which the kernel copies for the child page by page:
two thirds as much again as the program itself costs.
"""

import builtins
import errno
import linecache
import sys
from itertools import islice
from traceback import TracebackException
from types import TracebackType

CELL_FILE = "<cell"
"""With what the file names of cells begin."""
IS_KNOWN = sys.version_info[:2] == (3, 11)
"""Other versions of the module write something else."""
MOST_FRAMES = 3
"""More may be repetitions, which the module counts."""
OPERATORS = frozenset("+-*/%@&|^<>[")
"""In what an error is about, one of these may be marked apart."""


def error_text(error: BaseException) -> str:
    """Lines that end in a newline; the last says what was raised. Raises MemoryError."""
    text = plain_text(error) if IS_KNOWN else None
    return full_text(error) if text is None else text


def full_text(error: BaseException) -> str:
    """What the module writes of it, causes and groups included."""
    trace = error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(CELL_FILE):
        trace = trace.tb_next  # ours; a program's sys.tracebacklimit is about its own
    summary = TracebackException(type(error), error, trace, lookup_lines=False, compact=True)
    keep_cell_frames(summary)
    return "".join(summary.format())


def keep_cell_frames(summary: TracebackException) -> None:
    """Drop the frames of libraries, whose source is not the program's business, from all that it tells of."""
    left, seen = [summary], {id(summary)}
    while left:  # a chain may be longer than the interpreter's stack is deep
        one = left.pop()
        one.stack[:] = [frame for frame in one.stack if frame.filename.startswith(CELL_FILE)]
        for other in (one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())):
            if other is not None and id(other) not in seen:
                seen.add(id(other))
                left.append(other)


def limit_text(error: BaseException) -> str:
    """One line more, where a limit of the sandbox is behind an error: which one. Else nothing."""
    if not isinstance(error, OSError):
        return ""
    if error.errno == errno.EDQUOT:
        return "sandbox: a program may have only so many files and folders at a time (limits.files)\n"
    # numpy tells how much of an array was written, and no number.
    if error.errno == errno.EFBIG or (error.errno is None and "requested and" in str(error)):
        import resource  # of whose library every child would have a copy

        most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        return f"sandbox: a file may have {most} bytes (limits.file_bytes)\n"
    return ""


def shortest_text(error: BaseException) -> str:
    """The last line alone, for an error that nothing else can be said of."""
    return last_line(error) or f"{type(error).__name__}\n"


def plain_text(error: BaseException) -> str | None:
    """The same text of a usual error. None: it is not one, and `full_text` has to say it."""
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
    """Those of the cell's frames, outermost first."""
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
    """Where a frame was, its line, and what of it failed if that is not all of it."""
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
    # The newline counts as indentation, and a line that ends the program has none: the module's way.
    return f"{text}    {' ' * (start + 1 - (len(line) - len(shown)))}{'^' * (end - start)}\n"


def last_line(error: BaseException) -> str | None:
    """What was raised, and what it says."""
    try:
        said = str(error)
    except BaseException:  # of what it holds, which may be the program's own
        return None
    name = type(error).__qualname__
    return f"{name}: {said}\n" if said else f"{name}\n"


def syntax_text(error: SyntaxError) -> str | None:
    """The line that is no Python, and why."""
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
