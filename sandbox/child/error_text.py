"""The text of an uncaught error, as the interpreter writes it, without the frames of libraries."""

import errno
from traceback import TracebackException
from types import TracebackType

OWN_FILES = ("<cell", "<string>")
"""The prefixes of the file names of a program: of cells, and of texts that it executes."""


def own_trace(error: BaseException) -> TracebackType | None:
    """Return the traceback from the first frame of the program on."""
    trace = error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(OWN_FILES):
        trace = trace.tb_next  # frames of rocstar, which must not count for the program's sys.tracebacklimit
    return trace


def error_text(error: BaseException) -> str:
    """Return the traceback as lines with newlines, with causes and groups. Raise MemoryError."""
    summary = TracebackException(type(error), error, own_trace(error), lookup_lines=False, compact=True)
    keep_own_frames(summary)
    return "".join(summary.format())


def keep_own_frames(summary: TracebackException) -> None:
    """Remove the frames of libraries from an error and its causes, contexts and members."""
    left, seen = [summary], {id(summary)}
    while left:  # a chain may be longer than the interpreter's stack is deep
        one = left.pop()
        one.stack[:] = [frame for frame in one.stack if frame.filename.startswith(OWN_FILES)]
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


def last_line(error: BaseException) -> str | None:
    """Return the error's name and message, or None if its message raises."""
    try:
        message = str(error)
    except BaseException:  # the error's class may be the program's
        return None
    name = type(error).__qualname__
    return f"{name}: {message}\n" if message else f"{name}\n"
